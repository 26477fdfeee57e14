package demo

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/speech"
)

const itemTTL = 3 * time.Minute // longer than any timeout that can be configured for the bot

// channelEffects implements effects with a claimed channel, the bot and the API.
type channelEffects struct {
	*loopState
	RuntimeOptions
	ctx        context.Context // of the call
	ch         *callruntime.Channel
	background sync.WaitGroup
	readAt     time.Time            // when the current entry was read
	asked      map[string]time.Time // when the result of a work item was requested
	stop       context.CancelFunc   // of the current playback
	playing    string               // the message of the current playback, if it has one
	utterances chan utterance       // to be recognized, in order
	peer       *peer                // nil without a WebRTC call
	closePeer  func()
}

// id returns the ID of the next effect of a kind of the current entry. It is derived
// from the entry's position. If another runtime handles the entry again, it uses the same
// IDs, and the effects are not repeated.
func (e *channelEffects) id(kind string) string {
	if e.entry == "" {
		return uuid.NewString()
	}
	e.counts[kind]++
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, e.ch.ID, " ", e.entry, " ", kind, " ", e.counts[kind])).String()
}

func (e *channelEffects) send(t wire.MessageType, payload any) string {
	id := e.id(string(t))
	e.sendAs(id, t, payload)
	return id
}

func (e *channelEffects) sendAs(id string, t wire.MessageType, payload any) {
	raw, err := json.Marshal(payload, json.Deterministic(true))
	if err != nil {
		e.fail(fmt.Errorf("encode %s: %w", t, err))
		return
	}
	m := wire.ChannelMessage{Type: t, MessageID: id, Trace: e.trace}
	target, _ := m.Payload()
	*target = raw
	if c, ok := payload.(chat); !ok || c.Text != "" || c.Part <= 1 { // words within a streamed answer have no event of their own
		e.record(Event{Kind: EventMark, Title: "sends " + string(t), IDs: []string{sendingRef(m.MessageID)}}, nil)
	}
	e.check(e.ch.Send(e.ctx, m))
	e.Events.Sent(e.ch.ID, m.MessageID)
}

// check records a failure. It ignores that the channel has ended or that a work item
// does not exist any more.
func (e *channelEffects) check(err error) {
	if err != nil && !errors.Is(err, callruntime.ErrEnded) && !errors.Is(err, callruntime.ErrNotFound) {
		e.fail(err)
	}
}

// askBot sends the question again if an earlier runtime has sent it: the bot may have
// been stopped before it answered. A second answer is rejected.
func (e *channelEffects) askBot(q question) string {
	id := q.itemID
	if id == "" {
		id = e.id("question")
	}
	item, err := e.ch.Await(e.ctx, wire.Await{WorkItemID: id, TTLMs: new(itemTTL.Milliseconds()), Trace: e.trace})
	if err != nil {
		e.check(err)
		return id
	}
	_, path, _ := strings.Cut(item.URL, wire.WebhooksPath) // the bot is on this machine: it does not need PUBLIC_URL
	body := botRequest{wire.BotItem, e.ch.ID, id, q, callbackTarget{e.API + wire.WebhooksPath + path, item.Token, time.UnixMilli(item.Deadline).UTC()}}
	e.recordRequest(body)
	q.itemID = id
	e.background.Go(func() {
		start := time.Now()
		r, err := roundTrip(e.ctx, e.Client, http.MethodPost, e.Bot, nil, body)
		parts, title, data, reason := e.readResponse(id, r, err)
		e.Events.Record(Event{SessionID: e.ch.ID, Lane: LaneBot, To: LaneRuntime, Kind: EventHTTP, Title: title, After: []string{requestRef(id)},
			Ms: milliseconds(start), HTTP: &Exchange{Method: http.MethodPost, URL: e.Bot, Status: r.status}}, data)
		e.report(e.ctx, func(c *call) {
			if parts == 0 {
				c.botFailed(id, reason)
			} else {
				c.botAccepted(q, parts)
			}
		})
	})
	return id
}

// maxBotError is the length up to which the response of a failed bot is shown.
const maxBotError = 200

// readResponse returns the number of parts of the answer that the bot will give. It is 0 if the
// bot has failed, for the reason. title and data describe the response on the timeline.
func (e *channelEffects) readResponse(itemID string, r response, err error) (parts int, title string, data any, reason string) {
	if err != nil {
		return 0, "bot unreachable", map[string]string{"workItemId": itemID, "error": err.Error()}, "The bot is unreachable at " + e.Bot + "."
	}
	accepted := struct {
		Parts int `json:"parts"`
	}{Parts: 1} // if the body is empty
	if r.status == http.StatusAccepted && (len(r.body) == 0 || json.Unmarshal(r.body, &accepted) == nil) && accepted.Parts != 0 {
		return accepted.Parts, "202 Accepted", accepted, ""
	}
	body := truncate(strings.TrimSpace(string(r.body)), maxBotError)
	return 0, strings.TrimSpace(fmt.Sprintf("bot failed: %d %s", r.status, body)), map[string]string{"workItemId": itemID, "body": body},
		fmt.Sprintf("The bot returned status %d, not 202: %s.", r.status, strings.TrimSuffix(cmp.Or(body, "an empty body"), "."))
}

func (e *channelEffects) cancel(workItemID string) {
	delete(e.asked, workItemID)
	e.check(e.ch.Cancel(e.ctx, workItemID))
}

func (e *channelEffects) end(reason string) {
	e.record(Event{Kind: EventMark, Title: "ends", IDs: []string{endingRef}}, nil)
	e.check(e.ch.End(e.ctx, reason))
}

func (e *channelEffects) publish(kind EventKind, title string) {
	e.Events.Record(Event{SessionID: e.ch.ID, Lane: LaneRuntime, Kind: kind, Title: title}, nil)
}

func (e *channelEffects) publishError(kind EventKind, title string, err error) {
	e.Events.Record(Event{SessionID: e.ch.ID, Lane: LaneRuntime, Kind: kind, Title: title}, map[string]string{"error": err.Error()})
}

func (e *channelEffects) stopPlayback() {
	if e.stop != nil {
		e.stop()
	}
	e.recordEnd(e.playing, "playback stopped", nil)
}

// recordEnd records the end of the playback of a message.
func (e *channelEffects) recordEnd(messageID, title string, data any) {
	event := Event{SessionID: e.ch.ID, Lane: LaneRuntime, Kind: EventSpeech, Title: title}
	if messageID != "" {
		event.After = []string{playingRef(messageID)}
	}
	e.Events.Record(event, data)
}

// play plays an item in the background. Its reports are ignored after stopPlayback.
func (e *channelEffects) play(i item) {
	ctx, stop := context.WithCancel(e.ctx)
	e.stop, e.playing = stop, i.messageID
	leg := e.leg()
	report := func(f func(*call)) {
		e.report(e.ctx, func(c *call) {
			if ctx.Err() == nil {
				f(c)
			}
		})
	}
	e.background.Go(func() {
		length, err := e.playItem(ctx, leg, i, func(length time.Duration) { report(func(c *call) { c.playing(length) }) })
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			e.publishError(EventSpeech, "speech unavailable", err)
		default:
			e.recordEnd(i.messageID, "played", map[string]int64{"ms": length.Milliseconds()})
		}
		report(func(c *call) { stop(); c.played() })
	})
}

// audioFrame is the payload of an audio message.
type audioFrame struct {
	Encoding   string `json:"encoding"`
	SampleRate int    `json:"sampleRate"`
	Sequence   int    `json:"sequence"`
	Data       []byte `json:"data"`
	Last       bool   `json:"last,omitzero"`
}

// playItem plays one item in real time. It calls begin with the length of the item
// before the first frame.
func (e *channelEffects) playItem(ctx context.Context, leg leg, i item, begin func(time.Duration)) (time.Duration, error) {
	if i.pause > 0 {
		begin(i.pause)
		_ = background.Sleep(ctx, i.pause)
		return i.pause, nil
	}
	event := Event{SessionID: e.ch.ID, Lane: LaneRuntime, To: LaneBrowser, Kind: EventSpeech, Title: "repeats what it heard"}
	sound := i.recording
	if sound == nil {
		var err error
		if sound, err = e.speech(ctx, i); err != nil {
			return 0, err
		}
		event.Title = "plays: " + i.Text
	}
	length := soundLength(sound)
	if i.messageID != "" {
		event.IDs, event.After = []string{playingRef(i.messageID)}, []string{sendingRef(i.messageID)}
	}
	if i.repeats != "" {
		event.After = append(event.After, heardRef(i.repeats))
	}
	e.Events.Record(event, map[string]any{"ms": length.Milliseconds(), "dBFS": decimal(decibels(energy(sound)))})
	begin(length)
	return length, play(ctx, leg, sound)
}

func (e *channelEffects) speech(ctx context.Context, i item) ([]byte, error) {
	requested := time.Now()
	s, err := e.synthesize(ctx, i.speechRequest)
	if err != nil {
		return nil, err
	}
	title := "speech synthesized"
	if s.Cached {
		title = "speech from media cache"
	}
	e.Events.Record(Event{SessionID: e.ch.ID, Lane: LaneService, To: LaneRuntime, Kind: EventSpeech, Title: title, Ms: milliseconds(requested),
		HTTP: &Exchange{Method: http.MethodPost, URL: e.API + speech.Route, Status: http.StatusOK}},
		map[string]any{"text": i.Text, "hash": s.Hash, "cached": s.Cached, "characters": s.Characters, "url": s.URL})
	return s.Audio, nil
}

// synthesize returns speech as A-law with 8 kHz.
func (e *channelEffects) synthesize(ctx context.Context, r speechRequest) (response speech.Response, err error) {
	r.Encoding, r.EndpointID = string(speech.ALaw), e.ch.Endpoint
	body, err := e.callAPI(ctx, http.MethodPost, speech.Route, r)
	if err == nil {
		err = json.Unmarshal(body, &response)
	}
	if err == nil && len(response.Audio) == 0 { // it is in the media cache
		response.Audio, err = e.callAPI(ctx, http.MethodGet, response.URL, nil)
	}
	return response, err
}

// callAPI sends a request for speech. If the instance ends meanwhile, it sends the
// request again, to another one.
func (e *channelEffects) callAPI(ctx context.Context, method, path string, body any) ([]byte, error) {
	header := http.Header{"X-Api-Key": {e.Demo.Key.Reveal()}}
	r, err := roundTrip(ctx, e.Client, method, e.API+path, header, body)
	if err != nil || r.status == http.StatusServiceUnavailable {
		r, err = roundTrip(ctx, e.Client, method, e.API+path, header, body)
	}
	if err == nil && r.status/100 != 2 {
		err = fmt.Errorf("%s returned status %d: %.200s", path, r.status, r.body)
	}
	if err != nil {
		return nil, fmt.Errorf("request speech: %w", err)
	}
	return r.body, nil
}

// response is an HTTP response that is completely read.
type response struct {
	status int
	header http.Header
	body   []byte
}

// repeatOnNewConnection lets the transport send a request again if the server has closed the
// pooled connection, because nobody had used it for long. A nil value is not sent.
func repeatOnNewConnection(req *http.Request) { req.Header["Idempotency-Key"] = nil }

// roundTrip sends a request, perhaps twice. The body is sent as JSON, unless it is a reader or nil.
func roundTrip(ctx context.Context, client *http.Client, method, url string, header http.Header, body any) (r response, err error) {
	const maxResponse = 16 << 20 // audio
	content, isReader := body.(io.Reader)
	if body != nil && !isReader {
		raw, err := json.Marshal(body)
		if err != nil {
			return r, err
		}
		content = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, url, content)
	if err != nil {
		return r, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(req.Header, header)
	repeatOnNewConnection(req)
	resp, err := client.Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	return response{resp.StatusCode, resp.Header, raw}, err
}
