package demo

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// The commands of control messages for WebRTC.
const (
	webrtcOffer     = "webrtc_offer"
	webrtcAnswer    = "webrtc_answer"
	webrtcCandidate = "webrtc_candidate"
	webrtcEnd       = "webrtc_end"
)

// signal is the payload of a control message for WebRTC.
type signal struct {
	Command   string         `json:"command"`
	CallID    string         `json:"callId,omitzero"` // as in the offer, so that the page ignores messages of an earlier call
	SDP       string         `json:"sdp,omitzero"`
	Candidate jsontext.Value `json:"candidate,omitzero"`
	Reason    string         `json:"reason,omitzero"`
	Retry     bool           `json:"retry,omitzero"` // the page should call again
}

// greeting returns the text that greets the caller.
func (c *call) greeting() string {
	echo := c.echo && c.mode != "chat"
	switch {
	case c.ownBot && echo:
		return ownBotEchoGreeting
	case c.ownBot:
		return ownBotGreeting
	case echo:
		return echoGreeting
	}
	return greeting
}

const (
	maxChunk      = 10 * frameBytes  // of audio in one message of the page
	maxRepeated   = 10 * time.Second // length of an utterance that the bot repeats
	maxRecognized = 30 * time.Second // length of an utterance that is recognized
)

// handleAudio handles an audio message. In other modes than audio it is ignored.
func (c *call) handleAudio(m *wire.ChannelMessage) {
	var frame audioFrame
	if c.mode == "audio" && json.Unmarshal(m.Audio, &frame) == nil &&
		frame.Encoding == "alaw" && frame.SampleRate == sampleRate && len(frame.Data) <= maxChunk {
		c.hear(frame.Data)
	}
}

// handleControl handles a WebRTC message of the page. Other commands are for the service.
func (c *call) handleControl(m *wire.ChannelMessage) {
	var s signal
	if json.Unmarshal(m.Control, &s) != nil || c.ended {
		return
	}
	if s.Command != webrtcOffer && s.CallID != "" && s.CallID != c.webrtc.callID {
		return // about an earlier call
	}
	switch s.Command {
	case webrtcOffer:
		c.handleOffer(s)
	case webrtcCandidate:
		c.effects.addCandidate(s.Candidate)
	case webrtcEnd:
		c.closeWebRTC("the page ended it")
	}
}

// handleOffer answers an offer. It replaces an earlier call, for example of a page that
// was loaded again.
func (c *call) handleOffer(offer signal) {
	if c.mode != "webrtc" {
		c.effects.send(wire.TypeControl, signal{Command: webrtcEnd, CallID: offer.CallID, Reason: "This session has mode " + c.mode + ". Request a token with mode webrtc."})
		return
	}
	c.closeWebRTC("replaced by a new call")
	c.webrtc.open, c.webrtc.callID = true, offer.CallID
	if err := c.effects.answer(offer); err != nil {
		c.endWebRTC(signal{Reason: "The call was rejected: " + err.Error() + "."})
	}
}

// webrtcConnected is called when the caller can hear the bot.
func (c *call) webrtcConnected() {
	if c.webrtc.open && !c.webrtc.connected {
		c.webrtc.connected = true
		c.enqueue(item{speechRequest: speechRequest{Text: c.greeting()}})
	}
}

// webrtcEnded is called when the connection was lost, or else closed by the page.
func (c *call) webrtcEnded(lost bool) {
	if lost {
		c.endWebRTC(signal{Reason: "The connection was lost.", Retry: true})
	} else {
		c.closeWebRTC("the page closed it")
	}
}

// endWebRTC ends a WebRTC call and notifies the page. The caller sets Reason and Retry.
func (c *call) endWebRTC(s signal) {
	if c.webrtc.open {
		s.Command, s.CallID = webrtcEnd, c.webrtc.callID
		c.effects.send(wire.TypeControl, s)
		c.closeWebRTC(s.Reason)
	}
}

// closeWebRTC releases a WebRTC call. Its speech is not played any more.
func (c *call) closeWebRTC(reason string) {
	if !c.webrtc.open {
		return
	}
	c.webrtc.open, c.webrtc.connected, c.speaking = false, false, false
	c.effects.publish(EventSession, "WebRTC call ended: "+reason)
	c.effects.closeWebRTC()
	if !c.ended {
		c.interrupt()
	}
}

// speechStarted is called when the caller starts to speak. It interrupts playback,
// unless the settings require a number of words, which are known later.
func (c *call) speechStarted() {
	c.effects.publishSpeaking()
	if c.ending != nil || c.ended {
		return
	}
	c.speaking = true
	if c.settings.BargeIn && c.settings.BargeInMinWordCount <= 1 {
		c.interrupt()
	}
}

// speechEnded is called when the caller stops speaking. Without speech recognition the
// bot repeats what it heard.
func (c *call) speechEnded(u utterance) {
	c.effects.publishUtterance(u)
	if c.ending != nil || c.ended {
		return
	}
	c.speaking = false
	if c.echo {
		c.say(item{speechRequest: speechRequest{Text: fmt.Sprintf("I heard %.1f s. Listen:", u.duration().Seconds())}, recording: u.alaw, repeats: u.id})
	} else {
		c.effects.recognize(u)
	}
	c.startNext()
}

// recognized is called with the text of an utterance that was heard. It is empty for noise.
func (c *call) recognized(id, text string) {
	if text = strings.TrimSpace(text); text == "" || c.ending != nil || c.ended {
		return
	}
	c.effects.send(wire.TypeChat, chat{Text: text, From: "caller", Spoken: true})
	c.handleText(text, id)
}

func (c *call) recognitionFailed(err error) {
	c.notify("Speech recognition failed: " + err.Error() + ".")
}

// errorMessage returns the message of a provider's error, after a colon.
func errorMessage(raw jsontext.Value) string {
	var e struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(raw, &e) != nil || e.Message == "" {
		return ""
	}
	return ": " + strings.TrimSuffix(e.Message, ".")
}
