package phone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestHangupWithHeaders(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("1", event("Goodbye.", "hangup", `{"hangupReason":"all \"done\"","hangupSipHeaders":[{"name":"X-Case","value":"4711"},{"name":"User-to-User","value":"56a390;encoding=hex"}]}`))
	s := l.callWith(e, invite, receiveBye)
	e.press(t, "1")
	s.wait()
	s.one("BYE").expect(t, map[string]string{
		"X-Case": "4711", "User-to-User": "56a390;encoding=hex", "Reason": `Q.850;cause=16;text="all done"`, "bot-trace-transaction-id": transaction,
	})
	l.awaitMessage(l.channel(), `"type":"hangup"`, `"reason":"hangup","state":"ended"`)
	l.awaitIdle()
}

// The BYE waits for the delay of the command.
func TestHangupWithDelay(t *testing.T) {
	t.Parallel()
	const delay = 3 * time.Second
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("1", fmt.Sprintf(`"actions":[{"type":"hangup","delayBotDisconnectMs":%d}]`, delay.Milliseconds()))
	s := l.callWith(e, invite, receiveBye)
	l.channel()
	start := time.Now()
	e.press(t, "1")
	s.wait()
	if took := time.Since(start); took < delay {
		t.Errorf("the BYE came after %v, want %v", took, delay)
	}
	l.awaitMessage(l.channel(), `"result":"done","type":"hangup"`)
}

// Commands that the bot sends one after the other. Each has its effect on the line.
func TestCommandsOnTheLine(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("1", text("Digits follow.")+`,"actions":[{"type":"send_dtmf","digits":"42#","commandId":"d1"}]`)
	l.bot.answer("2", text("Wait.")+`,"actions":[{"type":"set_context","values":{"customer":{"id":7}}},{"type":"emit_event","event":"seen","payload":{"n":1}}]`)
	l.bot.answer("3", event("Enter your number.", "config", `{"sessionParams":{"dtmfCollect":true,"dtmfDigits":"0123456789","dtmfCollectMaxDigits":9,"dtmfCollectInterDigitTimeoutMS":60000,"dtmfCollectSubmitDigit":"#"}}`))
	l.bot.answer("55", event("Thank you.", "config", `{"sessionParams":{"dtmfCollect":false,"dtmfDigits":""}}`))
	l.bot.answer("6", text("Now other voices.")+`,"actions":[{"type":"set_tts_voice","voice":"en-gb"},{"type":"set_tts_speaking_rate","rate":1.5},
		{"type":"update_tts_config","config":{"provider":"tone","retries":2}},{"type":"update_stt_config","config":{"connectionTimeoutMs":500}},
		{"type":"set_barge_in","enabled":false},{"type":"set_voice_input","enabled":false,"clearBuffer":true}
		]`)
	l.bot.answer("9", event("", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	testkit.Until(t, "the caller hears 42#", func() bool { digits, _ := e.heard(); return digits == "42#" })
	l.awaitMessage(id, `"commandId":"d1","event":"command","result":"done","type":"send_dtmf"`)
	e.press(t, "2")
	l.awaitMessage(id, `"event":"seen","name":"event","payload":{"n":1}`)
	e.press(t, "3")
	if q := l.bot.awaitAsked("3"); fmt.Sprint(q.Context["customer"]) != "map[id:7]" {
		t.Errorf("context %v, want the customer", q.Context)
	}
	l.awaitMessage(id, `"result":"done","type":"update_dtmf_config"`)
	e.press(t, "5*5#") // * is not allowed, # submits
	l.bot.awaitAsked("55")
	l.awaitMessage(id, "Thank you.")
	e.press(t, "6")
	for _, name := range []string{"set_tts_voice", "set_tts_speaking_rate", "update_tts_config", "update_stt_config", "set_barge_in", "set_voice_input"} {
		l.awaitMessage(id, `"event":"command","result":"done","type":"`+name+`"`)
	}
	e.press(t, "9")
	s.wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	testkit.Equal(t, "end packets of three digits", e.ends, 9)
}

// Without a key that submits, digits are submitted after a pause.
func TestDigitsAreSubmittedAfterPause(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	for digits, timeouts := range map[string]string{"1": `"interDigitTimeoutMs":1000,"timeoutMs":0`, "22": `"interDigitTimeoutMs":0,"timeoutMs":1000`} {
		l.bot.answer(digits, `"actions":[{"type":"update_dtmf_config","enabled":true,"maxDigits":9,"terminator":"",`+timeouts+`}]`)
	}
	l.bot.answer("33", event("", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	for n, digits := range []string{"22", "33"} {
		testkit.Until(t, "the digits are configured", func() bool {
			return strings.Count(l.history(id), `"result":"done","type":"update_dtmf_config"`) == n+1
		})
		e.press(t, digits)
		l.bot.awaitAsked(digits)
	}
	s.wait()
	l.awaitIdle()
}

func TestPlayAudio(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	audio, address := l.speech("This is a recorded announcement.")
	l.bot.answer("1", `"actions":[{"type":"play_audio","media":{"url":`+fmt.Sprintf("%q", address)+`}},{"type":"play_audio","media":"http://192.0.2.1/secret"},{"type":"hangup"}]`)
	s := l.callWith(e, invite, receiveBye)
	e.press(t, "1")
	s.wait()
	testkit.Until(t, "the caller has heard the announcement", func() bool { _, heard := e.heard(); return bytes.Contains(heard, audible(audio)) })
	l.awaitMessage(l.channel(), "address not allowed")
}

// audible returns the whole frames of audio that are not silent, as the ear records them.
func audible(audio []byte) (frames []byte) {
	for frame := range slices.Chunk(audio[:len(audio)/160*160], 160) {
		if !bytes.Equal(frame, bytes.Repeat([]byte{silent}, 160)) {
			frames = append(frames, frame...)
		}
	}
	return frames
}

// speech returns the audio of a text and its path.
func (l *line) speech(text string) (audio []byte, path string) {
	l.t.Helper()
	request := func(method, path, body string) []byte {
		req, err := http.NewRequest(method, l.env["TELAPI_URL"]+path, strings.NewReader(body))
		testkit.Must(l.t, err)
		req.Header = http.Header{"X-Api-Key": {l.tenant.Key}, "Content-Type": {"application/json"}}
		resp, err := http.DefaultClient.Do(req)
		testkit.Must(l.t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		testkit.Must(l.t, err)
		return raw
	}
	raw := request(http.MethodPost, "/api/v1/runtime/speech", fmt.Sprintf(`{"text":%q,"encoding":"alaw","endpointId":%q}`, text, l.tenant.Endpoint.ID))
	_, rest, _ := strings.Cut(string(raw), `"url":"`)
	path, _, _ = strings.Cut(rest, `"`)
	return request(http.MethodGet, path, ""), path
}

func TestBargeIn(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	long := strings.Repeat("This is a long announcement. ", 30)
	l.bot.answer("1", text(long))
	l.bot.answer("2", event(long, "config", `{"sessionParams":{"bargeIn":true,"bargeInOnDTMF":true}}`))
	l.bot.answer("3", text("Thank you.")+`,"actions":{"type":"set_barge_in","enabled":false}`)
	l.bot.answer("4", text("Listen to the end."))
	l.bot.answer("9", event("", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	l.awaitMessage(id, "This is a long announcement.")
	e.speak(t, time.Second)
	l.awaitMessage(id, `"by":"speech","event":"playback","state":"interrupted"`, `"I heard `) // and the parrot
	e.press(t, "2")
	l.awaitMessage(id, `"result":"done","type":"update_dtmf_config"`)
	e.press(t, "3")
	l.awaitMessage(id, `"by":"dtmf","event":"playback","state":"interrupted"`, `"result":"done","type":"set_barge_in"`)
	interrupted := strings.Count(l.history(id), "interrupted")
	e.press(t, "4")
	l.awaitMessage(id, "Listen to the end.")
	e.speak(t, time.Second)
	e.press(t, "9")
	s.wait()
	testkit.Equal(t, "interruptions", strings.Count(l.history(id), "interrupted"), interrupted)
}

func TestBotDoesNotAnswer(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("1", event("I will be silent.", "config", `{"sessionParams":{"botNoInputTimeoutMs":500,"botNoInputSpeech":"Please wait.","botNoInputRetries":1,"botNoInputGiveUpTimeoutMs":30000}}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	l.awaitMessage(id, `"result":"done","type":"update_bot_delay_config"`)
	e.press(t, "2")
	s.wait()
	l.awaitMessage(id, `"event":"comfort_prompt","number":1`, `"event":"comfort_prompt","number":2`, `"event":"bot_timeout"`)
	if strings.Contains(l.history(id), `"number":3`) {
		t.Error("more comfort prompts than one and its repetition")
	}
	s.one("BYE").expect(t, map[string]string{"Reason": `Q.850;cause=41;text="bot_timeout"`})
	l.awaitIdle()
}

// A comfort prompt can be audio instead of a text.
func TestComfortPromptFromAddress(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	audio, address := l.speech("This is recorded music.")
	l.bot.answer("1", event("", "config", fmt.Sprintf(`{"sessionParams":{"botNoInputTimeoutMs":500,"botNoInputUrl":%q,"botNoInputSpeech":"Please wait."}}`, address)))
	l.bot.answer("9", event("", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	l.awaitMessage(id, `"result":"done","type":"update_bot_delay_config"`)
	e.press(t, "2")
	l.awaitMessage(id, `"event":"comfort_prompt","number":1`)
	testkit.Until(t, "the caller has heard the audio", func() bool { _, heard := e.heard(); return bytes.Contains(heard, audible(audio)) })
	if strings.Contains(l.history(id), "Please wait.") {
		t.Error("the text was spoken, too")
	}
	e.press(t, "9")
	s.wait()
}

// After a comfort prompt the caller is asked to speak again, unless the bot answers.
func TestRecognitionIsResumed(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("1", `"actions":[{"type":"update_bot_delay_config","botNoInputTimeoutMs":500,"botNoInputSpeech":"Please wait.",
		"botNoInputGiveUpTimeoutMs":120000,"resumeRecognitionTimeoutMs":1000,"resumeRecognitionSpeech":"Please say that again."}]`)
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	l.awaitMessage(id, `"result":"done","type":"update_bot_delay_config"`)
	e.press(t, "2")
	q := l.bot.awaitAsked("2")
	l.awaitMessage(id, "Please wait.", `"event":"recognition_resumed"`, "Please say that again.")
	l.bot.post(q, event("", "hangup", `{}`))
	s.wait()
	l.awaitIdle()
}

// Sentences of an answer that is still arriving are spoken one after the other.
func TestStreamedAnswer(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, nil), newEar(t)
	l.bot.answer("9", event("", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "1")
	q := l.bot.awaitAsked("1")
	body, stream := io.Pipe()
	req, err := http.NewRequest(http.MethodPost, q.Callback.URL, body)
	testkit.Must(t, err)
	req.Header = http.Header{"Content-Type": {"application/x-ndjson"}, "Token": {q.Callback.Token}}
	accepted := make(chan int, 1)
	go func() {
		status := 0
		if resp, err := http.DefaultClient.Do(req); err == nil {
			status = resp.StatusCode
			_ = resp.Body.Close()
		}
		accepted <- status
	}()
	_, err = fmt.Fprintln(stream, `{"delta":"This is the first sentence. And this "}`)
	testkit.Must(t, err)
	l.awaitMessage(id, "This is the first sentence.")
	if strings.Contains(l.history(id), "the second") {
		t.Error("the second sentence was spoken before it arrived")
	}
	_, err = fmt.Fprintf(stream, "%s\n%s\n", `{"delta":"is the second one."}`, `{"done":true}`)
	testkit.Must(t, errors.Join(err, stream.Close()))
	l.awaitMessage(id, "And this is the second one.")
	testkit.Equal(t, "callback", <-accepted, http.StatusAccepted)
	e.press(t, "9")
	s.wait()
	testkit.Equal(t, "first sentences in the history", strings.Count(l.history(id), "first sentence"), 1)
}

// A policy can require that the caller confirms a command with a key.
func TestConfirmation(t *testing.T) {
	t.Parallel()
	l, e := newLineWith(t, nil, wire.CommandPolicy{Type: "hangup", Enabled: true, RequireConfirmation: true}), newEar(t)
	l.bot.answer("7", event("", "hangup", `{}`))
	l.bot.answer("8", text("One more.")+`,"actions":[{"type":"hangup"},{"type":"play_audio","media":"/x.alaw"}]`)
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	e.press(t, "7")
	l.awaitMessage(id, "Press 1 to confirm")
	e.press(t, "2")
	l.awaitMessage(id, `"reason":"not confirmed","result":"failed","type":"hangup"`)
	e.press(t, "8")
	l.awaitMessage(id, `"type":"play_audio"`, "denied") // by the profile
	e.press(t, "1")
	s.wait()
	l.awaitIdle()
}

// A bot that does not answer in time loses the caller to the failover target.
func TestFailover(t *testing.T) {
	t.Parallel()
	l, e := newLine(t, harness.Env{"PHONE_FAILOVER": "sip:hotline@pbx.example"}), newEar(t)
	l.bot.answer("1", event("", "config", `{"sessionParams":{"botNoInputGiveUpTimeoutMs":1000}}`))
	s := l.callWith(e, invite, receiveRefer, receiveBye)
	id := l.channel()
	e.press(t, "1")
	l.awaitMessage(id, `"result":"done","type":"update_bot_delay_config"`)
	e.press(t, "2")
	s.wait()
	s.one("REFER").expect(t, map[string]string{"Refer-To": "<sip:hotline@pbx.example>"})
	l.awaitIdle()
}
