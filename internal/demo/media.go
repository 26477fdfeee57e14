package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

const maxUtterances = 4 // that wait for recognition; more are dropped

func (e *channelEffects) publishSpeaking() { e.publishHeard(EventSpeech, "caller speaks") }

func (e *channelEffects) publishUtterance(u utterance) {
	e.Events.Record(Event{SessionID: e.ch.ID, Lane: LaneBrowser, To: LaneRuntime, Kind: EventSpeech, IDs: []string{heardRef(u.id)},
		Title: strings.Replace(fmt.Sprintf("heard %.1f s, level %.1f dBFS", u.duration().Seconds(), u.level), "-", "−", 1)},
		map[string]any{"ms": u.duration().Milliseconds(), "dBFS": decimal(u.level), "silenceMs": u.silence.Milliseconds()})
}

func decimal(level float64) jsontext.Value { return jsontext.Value(fmt.Sprintf("%.1f", level)) }

// publishHeard publishes an event that the caller caused.
func (e *channelEffects) publishHeard(kind EventKind, title string) {
	e.Events.Record(Event{SessionID: e.ch.ID, Lane: LaneBrowser, To: LaneRuntime, Kind: kind, Title: title}, nil)
}

func (e *channelEffects) recognize(u utterance) {
	select {
	case e.utterances <- u:
	default:
		e.publish(EventSpeech, "utterance dropped: speech recognition is too slow")
	}
}

// recognizeAll recognizes utterances one after the other, so that their order is kept.
func (e *channelEffects) recognizeAll() {
	for {
		select {
		case u := <-e.utterances:
			start := time.Now()
			text, err := e.Recognizer.transcribe(e.ctx, u.wav())
			if err != nil {
				e.publishError(EventSpeech, "speech recognition failed", err)
				e.report(e.ctx, func(c *call) { c.recognitionFailed(err) })
				continue
			}
			e.Events.Record(Event{SessionID: e.ch.ID, Lane: LaneRuntime, Kind: EventSpeech, Title: "transcript: " + text, After: []string{heardRef(u.id)}},
				map[string]any{"text": text, "ms": time.Since(start).Milliseconds()})
			e.report(e.ctx, func(c *call) { c.recognized(u.id, text) })
		case <-e.ctx.Done():
			return
		}
	}
}

// answer implements effects. Reports of a call that was closed are ignored.
func (e *channelEffects) answer(offer signal) error {
	ctx, stop := context.WithCancel(e.ctx)
	var p *peer
	report := func(f func(*call)) {
		e.report(ctx, func(c *call) {
			if p != nil && e.peer == p {
				f(c)
			}
		})
	}
	options := peerOptions{
		Candidate: func(init any) {
			raw, _ := json.Marshal(init) // it can always be encoded
			report(func(*call) { e.signal(signal{Command: webrtcCandidate, CallID: offer.CallID, Candidate: raw}) })
		},
		Audio: func(alaw []byte) { report(func(c *call) { c.hear(alaw) }) },
		Digit: func(digit string) {
			e.publishHeard(EventFrame, "digit "+digit+" (RTP)")
			report(func(c *call) {
				if c.ending == nil {
					c.handleDigit(digit)
				}
			})
		},
		Connected: func() {
			e.publishHeard(EventSession, "WebRTC call connected")
			report((*call).webrtcConnected)
		},
		Ended: func(lost bool) { report(func(c *call) { c.webrtcEnded(lost) }) },
	}
	if e.ch.Session != nil {
		options.ICEServers = e.ch.Session.ICEServers
	}
	p, sdp, err := answerOffer(offer.SDP, options)
	if err != nil {
		stop()
		return err
	}
	e.peer, e.closePeer = p, func() {
		stop() // so that no function of the peer waits for the loop
		p.Close()
	}
	e.signal(signal{Command: webrtcAnswer, CallID: offer.CallID, SDP: sdp})
	return nil
}

// signal sends a control message with a random ID. IDs are not derived here, because
// another runtime that handles the same offer again sends another answer.
func (e *channelEffects) signal(s signal) {
	e.sendAs(uuid.NewString(), wire.TypeControl, s)
}

func (e *channelEffects) addCandidate(candidate jsontext.Value) {
	if e.peer == nil {
		e.publish(EventSession, "ICE candidate ignored: send webrtc_offer first")
		return
	}
	if err := e.peer.AddCandidate(candidate); err != nil {
		e.publishError(EventSession, "ICE candidate ignored", err)
	}
}

func (e *channelEffects) closeWebRTC() {
	if e.peer != nil {
		e.background.Go(e.closePeer)
		e.peer = nil
	}
}

// leg returns where speech goes: to the page as frames, or over WebRTC.
func (e *channelEffects) leg() leg {
	if e.peer != nil {
		return e.peer
	}
	return frameLeg{e.ch}
}

// frameLeg sends audio as messages of the session.
type frameLeg struct{ ch *callruntime.Channel }

// writeFrame implements leg.
func (l frameLeg) writeFrame(ctx context.Context, sequence int, alaw []byte, last bool) error {
	raw, _ := json.Marshal(audioFrame{"alaw", sampleRate, sequence, alaw, last}) // it can always be encoded
	return l.ch.SendAudio(ctx, raw)
}
