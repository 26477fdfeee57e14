package demo

import (
	"fmt"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/demo/voice"
)

func callerStartsSpeaking(at time.Duration) step {
	return step{at: at, report: (*call).speechStarted}
}

func callerStopsSpeaking(at time.Duration) step {
	return step{at: at, report: func(c *call) { c.speechEnded(voice.Utterance{ALaw: make([]byte, 2*voice.SampleRate)}) }}
}

func control(at time.Duration, payload string) step {
	return step{at: at, entry: `{"kind":"frame","message":{"type":"control","control":` + payload + `}}`}
}

var echo = step{report: func(c *call) { c.echo = true }}

func TestVoiceIsRepeatedOrRecognized(t *testing.T) {
	const heard = `says bot: I heard 2.0 s. Listen: `
	recognized := func(at time.Duration, text string) step {
		return step{at: at, report: func(c *call) { c.recognized(text) }}
	}
	runCases(t, []testCase{
		{name: "repeated", mode: "audio", speech: 2 * s, steps: []step{echo, callerStartsSpeaking(0), callerStopsSpeaking(2 * s)},
			want: `2s ` + heard + `2s plays I heard 2.0 s. Listen:`},
		{name: "recognized", mode: "audio", speech: 2 * s, steps: []step{callerStartsSpeaking(0), callerStopsSpeaking(2 * s), recognized(3*s, " hello "), botAnswer(4*s, "item-1", "Hi.")},
			want: `2s recognizes 2s 3s says caller: hello 3s asks hello part 1 3s outside of an entry 4s says bot: Hi. 4s plays Hi.`},
		{name: "noise without words", mode: "audio", steps: []step{callerStartsSpeaking(0), callerStopsSpeaking(2 * s), recognized(3*s, " ")}, want: `2s recognizes 2s`},
		{name: "failed recognition", mode: "audio", steps: []step{{report: func(c *call) { c.recognitionFailed(fmt.Errorf("status 500")) }}},
			want: `0s says runtime: Speech recognition failed: status 500.`},
		{name: "playback waits until the caller has finished", mode: "audio", speech: 2 * s, steps: []step{callerStartsSpeaking(0), botAnswer(1*s, "", "Hi."), callerStopsSpeaking(3 * s)},
			want: `1s says bot: Hi. 3s recognizes 2s 3s plays Hi.`},
		{name: "a call that ends does not wait", mode: "audio", speech: 2 * s, steps: []step{callerStartsSpeaking(0), botAnswer(1*s, "", "Bye."),
			command(1*s, wire.ApplyAfterPlayback, `{"type":"hangup","source":"bot"}`), callerStartsSpeaking(2 * s), callerStopsSpeaking(3 * s), recognized(3*s, "no")},
			want: `1s says bot: Bye. 1s plays Bye. 3s ends: hangup`},
	})
}

func TestVoiceInterruptsPlaybackIfAllowed(t *testing.T) {
	const started, stopped = `0s says bot: A story. 0s plays A story. `, `1s stops playback 1s control {"command":"stop_playback"} `
	for settings, want := range map[string]string{
		`"bargeIn":true`:                          started + stopped,
		`"bargeIn":false`:                         started,
		`"bargeIn":true,"bargeInMinWordCount":1`:  started + stopped,
		`"bargeIn":true,"bargeInMinWordCount":2`:  started, // the words are not known yet
		`"bargeIn":true,"bargeInOnDTMF":false`:    started + stopped,
		`"bargeIn":false,"bargeInMinWordCount":0`: started,
	} {
		runCases(t, []testCase{{name: settings, mode: "audio", speech: 10 * s, steps: []step{dtmfConfig(settings), botAnswer(0, "", "A story."), callerStartsSpeaking(1 * s)}, want: want}})
	}
}

func TestWebRTCCallsAreSignalled(t *testing.T) {
	connected := step{at: 1 * s, report: (*call).callConnected}
	offer := control(0, `{"command":"webrtc_offer","sdp":"v=0"}`)
	const greets = `1s plays Hello, this is the demo bot. Say help to hear what I understand. `
	runCases(t, []testCase{
		{name: "answered and ended by the page", mode: "webrtc", speech: 1 * s, steps: []step{offer, control(0, `{"command":"webrtc_candidate","candidate":null}`), connected, connected,
			control(3*s, `{"command":"webrtc_end"}`), control(4*s, `{"command":"webrtc_end"}`), botAnswer(5*s, "", "Not spoken.")},
			want: `0s answers v=0 0s candidate null ` + greets + `3s closes call 5s says bot: Not spoken.`},
		{name: "ended during speech", mode: "webrtc", speech: 9 * s, steps: []step{offer, connected, control(3*s, `{"command":"webrtc_end"}`)},
			want: `0s answers v=0 ` + greets + `3s closes call 3s stops playback 3s control {"command":"stop_playback"}`},
		{name: "refused", mode: "webrtc", steps: []step{control(0, `{"command":"webrtc_offer","sdp":"invalid"}`)},
			want: `0s control {"command":"webrtc_end","reason":"The call was refused: invalid SDP."} 0s closes call`},
		{name: "replaced", mode: "webrtc", steps: []step{offer, offer}, want: `0s answers v=0 0s closes call 0s answers v=0`},
		{name: "lost", mode: "webrtc", steps: []step{offer, {at: 2 * s, report: func(c *call) { c.callEnded(true) }}},
			want: `0s answers v=0 2s control {"command":"webrtc_end","reason":"The connection was lost.","retry":true} 2s closes call`},
		{name: "closed by the page", mode: "webrtc", steps: []step{offer, {at: 2 * s, report: func(c *call) { c.callEnded(false) }}}, want: `0s answers v=0 2s closes call`},
		{name: "ended by the bot", mode: "webrtc", steps: []step{offer, command(1*s, wire.ApplyAfterPlayback, `{"type":"hangup","source":"bot"}`)},
			want: `0s answers v=0 1s control {"command":"webrtc_end","reason":"hangup"} 1s closes call 1s ends: hangup`},
		{name: "other mode", mode: "audio", steps: []step{offer},
			want: `0s control {"command":"webrtc_end","reason":"This session has mode audio. Request a token with mode webrtc."}`},
		{name: "with call ID", mode: "webrtc", steps: []step{control(0, `{"command":"webrtc_offer","callId":"a","sdp":"v=0"}`), control(1*s, `{"command":"webrtc_offer","callId":"b","sdp":"v=1"}`),
			control(2*s, `{"command":"webrtc_candidate","callId":"a","candidate":1}`), control(2*s, `{"command":"webrtc_candidate","callId":"b","candidate":2}`), control(3*s, `{"command":"webrtc_end","callId":"a"}`),
			{at: 4 * s, report: func(c *call) { c.callEnded(true) }}},
			want: `0s answers v=0 1s closes call 1s answers v=1 2s candidate 2 4s control {"command":"webrtc_end","callId":"b","reason":"The connection was lost.","retry":true} 4s closes call`},
		{name: "no signals", mode: "webrtc", steps: []step{control(0, `{"command":"enable_text_chat"}`), control(0, `{"command":7}`), control(0, `{}`)}, want: ``},
	})
}

func TestAudioFramesAreHeard(t *testing.T) {
	audio := func(payload string) step {
		return step{entry: `{"kind":"frame","message":{"type":"audio","audio":` + payload + `}}`}
	}
	frames := []step{audio(`{"encoding":"alaw","sampleRate":8000,"sequence":0,"data":"1dXV"}`), audio(`{"encoding":"alaw","sampleRate":16000,"data":"1dXV"}`), audio(`{"data":"1dXV"}`), audio(`{"data":1}`)}
	runCases(t, []testCase{
		{name: "in mode audio", mode: "audio", steps: frames, want: `0s hears 3 bytes`},
		{name: "in mode webrtc", mode: "webrtc", steps: frames, want: ``},
		{name: "in mode chat", steps: frames, want: ``},
	})
}
