package demo

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
)

// s is short for the times of steps.
const s = time.Second

func TestSilenceTimersAreIndependent(t *testing.T) {
	shortTimeouts := botDelayConfig(`"botNoInputTimeoutMs":2000,"botNoInputSpeech":"Bear with us.","botNoInputRetries":1,"botNoInputGiveUpTimeoutMs":7000`)
	const timedOut = ` cancels item-1
		%[1]s status {"event":"bot_timeout"}
		%[1]s says runtime: The bot did not answer in time. Try something else.`
	runCases(t, []testCase{
		{name: "comfort prompt, repetition and timeout", steps: []step{shortTimeouts, callerSays(0, "hi")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			4s says runtime: Bear with us.
			7s` + fmt.Sprintf(timedOut, "7s")},
		{name: "timeout before the last prompt", steps: []step{shortTimeouts, botDelayConfig(`"botNoInputRetries":10,"botNoInputGiveUpTimeoutMs":5000`), callerSays(0, "hi")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			4s says runtime: Bear with us.
			5s` + fmt.Sprintf(timedOut, "5s")},
		{name: "one prompt without repetition, long timeout", steps: []step{shortTimeouts, botDelayConfig(`"botNoInputRetries":0,"botNoInputGiveUpTimeoutMs":120000`), callerSays(0, "hi")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			2m0s` + fmt.Sprintf(timedOut, "2m0s")},
		{name: "answer ends the silence", steps: []step{shortTimeouts, callerSays(0, "hi"), botAnswer(3*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			3s says bot: Hello.`},
		{name: "first of two answers restarts the silence", steps: []step{shortTimeouts, callerSays(0, "hi"), callerSays(1*s, "ho"), botAnswer(6*s, "item-1", "Hello."), botAnswer(9*s, "item-2", "Well.")}, want: `0s asks hi part 1
			1s asks ho part 1
			2s says runtime: Bear with us.
			4s says runtime: Bear with us.
			6s says bot: Hello.
			8s says runtime: Bear with us.
			9s says bot: Well.`},
		{name: "changed setting applies to the current silence", steps: []step{callerSays(0, "hi"),
			command(1*s, wire.ApplyImmediately, `{"type":"update_bot_delay_config","source":"bot","botNoInputTimeoutMs":1500,"botNoInputRetries":0}`), botAnswer(9*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			1.5s says runtime: One moment, please.
			9s says bot: Hello.`},
		{name: "spoken prompt is repeated after its end", mode: "audio", speech: 3 * s, steps: []step{shortTimeouts, botDelayConfig(`"botNoInputGiveUpTimeoutMs":60000`), callerSays(0, "hi"), botAnswer(20*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us. 2s plays Bear with us.
			7s says runtime: Bear with us. 7s plays Bear with us.
			20s says bot: Hello. 20s plays Hello.`},
		{name: "answer stops a prompt", mode: "audio", speech: 3 * s, steps: []step{shortTimeouts, callerSays(0, "hi"), botAnswer(3*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us. 2s plays Bear with us.
			3s stops playback 3s says bot: Hello. 3s plays Hello.`},
		{name: "answer waits for a prompt if configured", mode: "audio", speech: 3 * s, steps: []step{shortTimeouts, botDelayConfig(`"abortPlayOnBotMessage":false`), callerSays(0, "hi"), botAnswer(3*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us. 2s plays Bear with us.
			3s says bot: Hello. 5s plays Hello.`},
		{name: "recognition resumes after a prompt", steps: []step{shortTimeouts, botDelayConfig(`"resumeRecognitionTimeoutMs":1000,"resumeRecognitionSpeech":"I listen.","botNoInputRetries":0`), callerSays(0, "hi"), botAnswer(6*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			3s status {"event":"recognition_resumed"}
			3s says runtime: I listen.
			6s says bot: Hello.`},
		{name: "audio from a URL instead of speech", steps: []step{shortTimeouts, botDelayConfig(`"botNoInputUrl":"https://media.example/wait.wav","botNoInputRetries":0`), callerSays(0, "hi"), botAnswer(3*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s action {"name":"play_audio","url":"https://media.example/wait.wav"}
			3s says bot: Hello.`},
		{name: "no prompt during playback", mode: "audio", speech: 5 * s, steps: []step{shortTimeouts, botAnswer(0, "", "A long story."), command(0, wire.ApplyImmediately, `{"type":"update_dtmf_config","source":"bot","bargeIn":false}`), callerSays(1*s, "hi"), botAnswer(9*s, "item-1", "Hello.")}, want: `0s says bot: A long story. 0s plays A long story.
			1s asks hi part 1
			7s says runtime: Bear with us. 7s plays Bear with us.
			8s cancels item-1
			8s stops playback
			8s status {"event":"bot_timeout"}
			8s says runtime: The bot did not answer in time. Try something else.
			9s says bot: Hello. 9s plays Hello.`},
	})
}

func TestCallEndsAfterPlayback(t *testing.T) {
	hangup := func(at time.Duration, more string) step {
		return command(at, wire.ApplyAfterPlayback, `{"type":"hangup","source":"bot","reason":"done"`+more+`}`)
	}
	runCases(t, []testCase{
		{name: "immediately without playback", steps: []step{botAnswer(0, "", "Bye."), hangup(1*s, "")}, want: `0s says bot: Bye. 1s ends: hangup`},
		{name: "after the last utterance", mode: "audio", speech: 30 * s, steps: []step{botAnswer(0, "", "A story."), botAnswer(0, "", "Bye."), hangup(0, "")},
			want: `0s says bot: A story. 0s plays A story. 0s says bot: Bye. 30s plays Bye. 1m0s ends: hangup`},
		{name: "after the requested delay", mode: "audio", speech: 2 * s, steps: []step{botAnswer(0, "", "Bye."), hangup(0, `,"delayBotDisconnectMs":700`)},
			want: `0s says bot: Bye. 0s plays Bye. 2.7s ends: hangup`},
		{name: "if speech never starts", mode: "audio", speech: -1, steps: []step{botAnswer(0, "", "Bye."), hangup(0, "")},
			want: `0s says bot: Bye. 0s plays Bye. 30s stops playback 30s ends: hangup`},
		{name: "if speech never ends", mode: "audio", speech: -1, steps: []step{botAnswer(0, "", "Bye."), {at: 1 * s, report: func(c *call) { c.playing(10 * s) }}, hangup(2*s, "")},
			want: `0s says bot: Bye. 0s plays Bye. 41s stops playback 41s ends: hangup`},
		{name: "with a transfer", mode: "audio", speech: 2 * s, steps: []step{botAnswer(0, "", "Wait."), command(0, wire.ApplyAfterPlayback, `{"type":"transfer","source":"bot","target":"tel:+4930","message":"soon"}`)},
			want: `0s says bot: Wait. 0s plays Wait. 2s action {"name":"transfer","target":"tel:+4930","message":"soon"} 2s ends: transferred`},
		{name: "once, without further questions", mode: "audio", speech: 2 * s, steps: []step{botAnswer(0, "", "Bye."), hangup(0, ""), hangup(0, ""), callerSays(1*s, "wait"), callerPresses(1*s, "1")},
			want: `0s says bot: Bye. 0s plays Bye. 2s ends: hangup`},
	})
}

func TestApplyDeterminesWhenCommandsTakeEffect(t *testing.T) {
	runCases(t, []testCase{
		{name: "update_* commands immediately", mode: "audio", speech: 10 * s, steps: []step{botAnswer(0, "", "A story."),
			command(1*s, wire.ApplyImmediately, `{"type":"update_dtmf_config","source":"bot","bargeIn":false}`), callerSays(2*s, "stop")},
			want: `0s says bot: A story. 0s plays A story. 2s asks stop part 1
				15s says runtime: One moment, please. 15s plays One moment, please.
				30s says runtime: One moment, please. 30s plays One moment, please.
				32s cancels item-1 32s stops playback 32s status {"event":"bot_timeout"} 32s says runtime: The bot did not answer in time. Try something else.`},
		{name: "other commands in order", mode: "audio", speech: 10 * s, steps: []step{botAnswer(0, "", "A story."),
			command(1*s, wire.ApplyInOrder, `{"type":"set_barge_in","source":"bot","enabled":false}`), callerSays(2*s, "stop"), botAnswer(3*s, "item-1", "Well."), callerSays(4*s, "stop"), botAnswer(5*s, "item-2", "No.")},
			want: `0s says bot: A story. 0s plays A story. 2s stops playback 2s control {"command":"stop_playback"} 2s asks stop part 1
				3s says bot: Well. 3s plays Well. 4s asks stop part 1 5s says bot: No. 13s plays No.`},
		{name: "pause delays later items", mode: "audio", speech: 1 * s, steps: []step{botAnswer(0, "", "One."), {entry: `{"kind":"bot_event","event":"pause","value":2500}`}, botAnswer(0, "", "Two.")},
			want: `0s says bot: One. 0s plays One. 0s says bot: Two. 1s plays silence 3.5s plays Two.`},
		{name: "message with disabled cache", mode: "audio", speech: 1 * s, steps: []step{{entry: `{"kind":"bot_message","text":"Fresh.","form":"plain","disableTtsCache":true}`}, botAnswer(0, "", "Kept.")},
			want: `0s says bot: Fresh. 0s plays Fresh. (not from the cache) 0s says bot: Kept. 1s plays Kept.`},
		{name: "voice message is spoken in chat mode", speech: 1 * s, steps: []step{{entry: `{"kind":"bot_message","text":"Listen.","form":"voice"}`}},
			want: `0s says bot: Listen. 0s plays Listen.`},
	})
}

func TestCallerConfirmsCommands(t *testing.T) {
	hangup := command(0, wire.ApplyAfterPlayback, `{"type":"hangup","source":"bot","requireConfirmation":true}`)
	answer := func(at time.Duration, result string) step {
		return step{at: at, entry: `{"kind":"frame","message":{"type":"action_result","actionResult":` + result + `}}`}
	}
	const asked = `0s action {"command":{"type":"hangup","source":"bot"},"name":"confirm"} `
	const cancelled = `s says runtime: Not confirmed. The command was cancelled.`
	runCases(t, []testCase{
		{name: "confirmed", steps: []step{hangup, answer(1*s, `{"name":"another","confirmed":true}`), answer(2*s, `{"name":"confirm","confirmed":true}`)}, want: asked + `2s ends: hangup`},
		{name: "declined", steps: []step{hangup, answer(1*s, `{"name":"confirm"}`), answer(2*s, `{"name":"confirm","confirmed":true}`)}, want: asked + `1` + cancelled},
		{name: "timed out", steps: []step{hangup}, want: asked + `30` + cancelled},
	})
}

func TestCallerInterruptsPlaybackIfAllowed(t *testing.T) {
	story := botAnswer(0, "", "A story.")
	const started, stopped = `0s says bot: A story. 0s plays A story. `, `1s stops playback 1s control {"command":"stop_playback"} `
	var cases []testCase
	for _, tt := range []struct {
		bargeIn, onDTMF bool
		want            string
	}{{true, true, stopped}, {true, false, ""}, {false, true, ""}, {false, false, ""}} {
		cases = append(cases, testCase{name: fmt.Sprintf("by a digit: bargeIn %v, bargeInOnDTMF %v", tt.bargeIn, tt.onDTMF), mode: "audio", speech: 10 * s,
			steps: []step{dtmfConfig(fmt.Sprintf(`"bargeIn":%v,"bargeInOnDTMF":%v,"sendDTMF":false`, tt.bargeIn, tt.onDTMF)), story, callerPresses(1*s, "5")}, want: started + tt.want})
	}
	noPrompts := botDelayConfig(`"botNoInputTimeoutMs":60000`)
	runCases(t, append(cases,
		testCase{name: "by enough words", mode: "audio", speech: 10 * s, steps: []step{noPrompts, dtmfConfig(`"bargeInMinWordCount":3`), story, callerSays(1*s, "please do stop"), botAnswer(2*s, "item-1", "Yes.")},
			want: started + stopped + `1s asks please do stop part 1 2s says bot: Yes. 2s plays Yes.`},
		testCase{name: "not by fewer words", mode: "audio", speech: 10 * s, steps: []step{noPrompts, dtmfConfig(`"bargeInMinWordCount":3`), story, callerSays(1*s, "do stop"), botAnswer(2*s, "item-1", "Yes.")},
			want: started + `1s asks do stop part 1 2s says bot: Yes. 10s plays Yes.`},
		testCase{name: "queued speech is dropped", mode: "audio", speech: 10 * s, steps: []step{noPrompts, story, botAnswer(0, "", "Another."), callerSays(1*s, "stop"), botAnswer(2*s, "item-1", "Yes.")},
			want: `0s says bot: A story. 0s plays A story. 0s says bot: Another. ` + stopped + `1s asks stop part 1 2s says bot: Yes. 2s plays Yes.`},
	))
}

func TestDigitCollectionFollowsSettings(t *testing.T) {
	longTimeouts := botDelayConfig(`"botNoInputTimeoutMs":60000,"botNoInputGiveUpTimeoutMs":120000,"botNoInputRetries":0`)
	collect := dtmfConfig(`"enabled":true,"maxDigits":4,"interDigitTimeoutMs":3000,"terminator":"#"`)
	submitted := func(at, digits string) string {
		return fmt.Sprintf(`%[1]s status {"digits":"%[2]s","event":"dtmf"} %[1]s asks %[2]s part 1 `, at, digits)
	}
	answered := func(n int) step { return botAnswer(30*s, fmt.Sprint("item-", n), "Right.") }
	const right = `30s says bot: Right. `
	runCases(t, []testCase{
		{name: "one by one without collection", steps: []step{longTimeouts, callerPresses(0, "1"), callerPresses(1*s, "2"), answered(1), answered(2)},
			want: submitted("0s", "1") + submitted("1s", "2") + right + right},
		{name: "maximum number of digits", steps: []step{longTimeouts, collect, callerPresses(0, "1234"), answered(1)}, want: submitted("0s", "1234") + right},
		{name: "terminator", steps: []step{longTimeouts, collect, callerPresses(0, "12"), callerPresses(2*s, "#"), answered(1)}, want: submitted("2s", "12") + right},
		{name: "inter-digit timeout", steps: []step{longTimeouts, collect, callerPresses(0, "1"), callerPresses(2*s, "2"), answered(1)}, want: submitted("5s", "12") + right},
		{name: "total timeout", steps: []step{longTimeouts, collect, dtmfConfig(`"timeoutMs":4000`), callerPresses(0, "1"), callerPresses(2*s, "2"), answered(1)}, want: submitted("4s", "12") + right},
		{name: "no limit", steps: []step{longTimeouts, collect, dtmfConfig(`"maxDigits":0,"terminator":""`), callerPresses(0, "123456#"), answered(1)}, want: submitted("3s", "123456#") + right},
		{name: "ignored digits", steps: []step{longTimeouts, collect, dtmfConfig(`"dtmfDigits":"12"`), callerPresses(0, "19A2#"), answered(1)}, want: submitted("0s", "12") + right},
		{name: "disabled", steps: []step{longTimeouts, collect, dtmfConfig(`"sendDTMF":false`), callerPresses(0, "1234#")}, want: ""},
		{name: "collection is switched off", steps: []step{longTimeouts, collect, callerPresses(0, "12"), command(1*s, wire.ApplyImmediately, `{"type":"update_dtmf_config","source":"bot","enabled":false}`), answered(1)},
			want: submitted("1s", "12") + right},
		{name: "terminator only", steps: []step{longTimeouts, collect, callerPresses(0, "#")}, want: ""},
	})
}

func TestConversationContinues(t *testing.T) {
	runCases(t, []testCase{
		{name: "answer in parts", steps: []step{callerSays(0, "hi"), {at: 1 * s, report: func(c *call) { c.botAccepted(question{Text: "hi", Part: 1}, 2) }}, botAnswer(2*s, "item-1", "One."), botAnswer(3*s, "item-2", "Two.")},
			want: `0s asks hi part 1 1s asks hi part 2 2s says bot: One. 3s says bot: Two.`},
		{name: "bot failed", steps: []step{callerSays(0, "hi"), {at: 1 * s, report: func(c *call) { c.botFailed("item-1", "The bot returned status 400: no.") }}},
			want: `0s asks hi part 1 1s cancels item-1 1s says runtime: The bot returned status 400: no. Try again.`},
		{name: "provider error", steps: []step{callerSays(0, "hi"), {at: 1 * s, entry: `{"kind":"provider_error","workItemId":"item-1","error":{"code":"X"}}`}},
			want: `0s asks hi part 1 1s says runtime: The bot could not answer. Try something else.`},
		{name: "work item timed out", steps: []step{callerSays(0, "hi"), {at: 1 * s, entry: `{"kind":"timeout","workItemId":"item-1","workItemKind":"bot"}`}},
			want: `0s asks hi part 1 1s says runtime: The bot did not answer in time. Try something else.`},
		{name: "denied command", steps: []step{{entry: `{"kind":"command_denied","reason":"target_not_allowed","command":{"type":"transfer","source":"bot"}}`}},
			want: `0s says runtime: A transfer was denied: target_not_allowed.`},
		{name: "ignored entries", steps: []step{{entry: `{"kind":"nlu_data","nluData":{}}`}, {entry: `{"kind":"unknown"}`}, {entry: `{"kind":"frame","message":{"type":"chat","chat":{"text":7}}}`},
			{entry: `{"kind":"frame","message":{"type":"browser_action","browserAction":{"type":"click"}}}`}, callerSays(0, "  "), {entry: `{"kind":"bot_event","event":"typing","value":{"enable":true}}`}},
			want: `0s status {"event":"typing","value":{"enable":true}}`},
	})
}

func TestStreamedAnswer(t *testing.T) {
	part := func(at time.Duration, n int, text string) step {
		return step{at: at, entry: fmt.Sprintf(`{"kind":"bot_message","workItemId":"item-1","text":%q,"form":"markdown","part":%d}`, text, n)}
	}
	end := func(at time.Duration) step {
		return step{at: at, entry: `{"kind":"bot_event","workItemId":"item-1","event":"empty","parts":2}`}
	}
	const ended = `status {"event":"answer_end","value":"item-1"} `
	const asked, first = `0s asks hi part 1 `, `1s says bot: One. 1s plays One. `
	speaks := step{at: 2 * s, report: func(c *call) { c.speechStarted() }}
	runCases(t, []testCase{
		{name: "sentence by sentence", mode: "audio", speech: 3 * s, steps: []step{callerSays(0, "hi"), part(1*s, 1, "One."), part(2*s, 2, "Two."), end(3 * s)},
			want: asked + first + `2s says bot: Two. 3s ` + ended + `4s plays Two.`},
		{name: "of a language model", steps: []step{callerSays(0, "hi"), {at: 1 * s, entry: `{"kind":"llm_part","workItemId":"item-1","text":"One.","part":1}`},
			{at: 2 * s, entry: `{"kind":"llm_result","workItemId":"item-1","content":"One.","parts":1}`}}, want: asked + `1s says bot: One. 2s ` + ended},
		{name: "interrupted", mode: "audio", speech: 3 * s, steps: []step{callerSays(0, "hi"), part(1*s, 1, "One."), speaks, part(2*s, 2, "Two."), end(3 * s)},
			want: asked + first + `2s cancels item-1 2s ` + ended + `2s stops playback 2s control {"command":"stop_playback"}`},
		{name: "interrupted between two sentences", mode: "audio", speech: s / 2, steps: []step{callerSays(0, "hi"), part(1*s, 1, "One."), speaks}, want: asked + first + `2s cancels item-1 2s ` + ended},
		{name: "broken off", steps: []step{callerSays(0, "hi"), part(1*s, 1, "One."), {at: 2 * s, entry: `{"kind":"provider_error","workItemId":"item-1","error":{"code":"X"}}`}},
			want: asked + `1s says bot: One. 2s ` + ended + `2s says runtime: The bot could not answer. Try something else.`},
	})
}

// The words of an answer with split=none are shown as they come, and spoken by sentence.
func TestAnswerByWord(t *testing.T) {
	words := func(at time.Duration, text string) step {
		return step{at: at, entry: fmt.Sprintf(`{"kind":"bot_message","workItemId":"item-1","text":%q,"form":"plain","part":1}`, text)}
	}
	end := step{at: 9 * s, entry: `{"kind":"bot_event","workItemId":"item-1","event":"empty","parts":4}`}
	const asked, ended = `0s asks hi part 1 `, `9s status {"event":"answer_end","value":"item-1"} `
	hi := callerSays(0, "hi")
	runCases(t, []testCase{
		{name: "in a chat", steps: []step{hi, words(1*s, "There"), words(2*s, " was a **k"), words(3*s, "ing**. "), words(4*s, "He had a son. His name"), words(5*s, " was Bob"), end},
			want: asked + `1s says bot: [There] 2s says bot: [There was a k] 3s says bot: [There was a king.]
				4s says bot: There was a king. 4s says bot: He had a son. [His name] 5s says bot: [His name was Bob] 9s says bot: His name was Bob ` + ended},
		{name: "in a call", mode: "audio", speech: 1 * s, steps: []step{hi, words(1*s, "One"), words(2*s, ". Two"), words(3*s, ". "), end},
			want: asked + `1s says bot: [One] 2s says bot: One. [Two] 2s plays One. 3s says bot: [Two.] 9s says bot: Two. 9s plays Two. ` + ended},
		{name: "before a command", mode: "audio", speech: 1 * s, steps: []step{hi, words(1*s, "Bye"), {at: 2 * s, entry: `{"kind":"command","workItemId":"item-1","apply":"after_playback","command":{"type":"hangup","source":"bot"}}`}},
			want: asked + `1s says bot: [Bye] 2s says bot: Bye 2s plays Bye 3s ends: hangup`},
		{name: "comfort prompts go on until the first sentence", mode: "audio", speech: 2 * s, steps: []step{botDelayConfig(`"botNoInputTimeoutMs":2000`), hi, words(3*s, "One"), words(3500*time.Millisecond, ". Two"), end},
			want: asked + `2s says runtime: One moment, please. 2s plays One moment, please. 3s says bot: [One] 3.5s stops playback 3.5s says bot: One. [Two] 3.5s plays One. 9s says bot: Two 9s plays Two ` + ended},
		{name: "the first word ends the silence of a chat", steps: []step{hi, words(1*s, "One"), end}, want: asked + `1s says bot: [One] 9s says bot: One ` + ended},
		{name: "interrupted before the first sentence", mode: "audio", speech: 1 * s, steps: []step{hi, words(1*s, "One"), callerStartsSpeaking(2 * s), words(3*s, ". Two"), end},
			want: asked + `1s says bot: [One] 2s cancels item-1 2s status {"event":"answer_end","value":"item-1"}`},
		{name: "nothing new to show", steps: []step{hi, words(1*s, " "), words(2*s, "One"), words(3*s, " "), end}, want: asked + `2s says bot: [One] 9s says bot: One ` + ended},
		{name: "broken off", steps: []step{hi, words(1*s, "One"), {at: 9 * s, entry: `{"kind":"timeout","workItemId":"item-1","workItemKind":"bot"}`}},
			want: asked + `1s says bot: [One] 9s says bot: One ` + ended + `9s says runtime: The bot did not answer in time. Try something else.`},
	})
}

const connected = `{"kind":"session","event":"connected"}`

func TestCallerIsGreetedOnce(t *testing.T) {
	greetAgain := func(c *call) { c.greeted = false }
	ownBot := func(c *call) { c.greeted, c.ownBot = false, true }
	runCases(t, []testCase{{name: "without the demo's phrases", steps: []step{{report: ownBot}, {entry: connected}}, want: "0s says bot: " + ownBotGreeting}, {name: "connected twice", steps: []step{{report: greetAgain}, {entry: connected}, {entry: connected}}, want: "0s says bot: " + greeting}})
}

func TestCallOfEarlierRuntimeContinues(t *testing.T) {
	takeOver := func(items ...string) step {
		open := []wire.OpenWorkItem{{WorkItemID: "credential", Scope: wire.ScopeChannel}}
		for _, id := range items {
			open = append(open, wire.OpenWorkItem{WorkItemID: id, Scope: wire.ScopeItem})
		}
		return step{report: func(c *call) { c.greeted = false; c.resume(true, open) }}
	}
	first := question{Text: "hi", Part: 1, itemID: "item-1"}
	runCases(t, []testCase{
		{name: "without another greeting", steps: []step{takeOver(), {entry: connected}}, want: ``},
		{name: "with a WebRTC call", mode: "webrtc", steps: []step{takeOver()}, want: `0s control {"command":"webrtc_end","reason":"Another runtime has taken over the session.","retry":true}`},
		{name: "with an answer to its question", steps: []step{takeOver("item-0"), botAnswer(1*s, "item-0", "Hello.")}, want: `1s says bot: Hello.`},
		{name: "without an answer to its question", steps: []step{takeOver("item-0")}, want: `5s says runtime: One moment, please. 10s says runtime: One moment, please.
			30s cancels item-0 30s status {"event":"bot_timeout"} 30s says runtime: The bot did not answer in time. Try something else.`},
		{name: "with a question that is asked again", steps: []step{takeOver("item-1"), callerSays(0, "hi"), botAnswer(1*s, "item-1", "Hello.")}, want: `0s asks hi part 1 1s says bot: Hello.`},
		{name: "with a part that is answered already", steps: []step{takeOver(), callerSays(0, "hi"), botAnswer(0, "item-1", "One."), botAnswer(0, first.next().itemID, "Two."),
			{report: func(c *call) { c.botAccepted(first, 2) }}}, want: `0s asks hi part 1 0s says bot: One. 0s says bot: Two.`},
	})
}

func TestEntriesThatRestoreTheCallAreNotCommitted(t *testing.T) {
	const ignored = `{"kind":"nlu_data","nluData":{}}`
	word := func(text string) string {
		return fmt.Sprintf(`{"kind":"bot_message","workItemId":"item-1","text":%q,"form":"plain","part":1}`, text)
	}
	for name, tt := range map[string]struct {
		entries []string
		want    int // number of the newest committed entry
	}{
		"no question":        {[]string{connected, ignored}, 2},
		"open question":      {[]string{connected, callerSays(0, "hi").entry, ignored}, 1},
		"one of two answers": {[]string{callerSays(0, "hi").entry, callerSays(0, "ho").entry, botAnswer(0, "item-1", "Hello.").entry}, 0},
		"answered question":  {[]string{callerSays(0, "hi").entry, botAnswer(0, "item-1", "Hello.").entry}, 2},
		"collected digits":   {[]string{connected, dtmfConfig(`"enabled":true`).entry, callerPresses(0, "1").entry}, 1},
		"open confirmation":  {[]string{connected, command(0, wire.ApplyAfterPlayback, `{"type":"hangup","source":"bot","requireConfirmation":true}`).entry}, 1},
		"ended":              {[]string{callerSays(0, "hi").entry, `{"kind":"channel_ended"}`}, 2},
		"too many entries":   {append(slices.Repeat([]string{callerSays(0, "hi").entry}, 3), slices.Repeat([]string{ignored}, maxUncommitted)...), 3},
		"too large entries":  {[]string{callerSays(0, "hi").entry, callerSays(0, strings.Repeat("x", maxUncommittedBytes)).entry}, 2},
		"sentence":           {[]string{callerSays(0, "hi").entry, word("One"), ignored, word(". Two"), ignored, word(" and")}, 3},
		"last sentence":      {[]string{callerSays(0, "hi").entry, word("One"), word(" and"), `{"kind":"bot_event","workItemId":"item-1","event":"empty","parts":2}`}, 4},
		"cannot be decoded":  {[]string{connected, `{"kind":7}`}, 2},
	} {
		sim := &simulation{loopState: newLoopState(), start: time.Now()}
		c := newCall("chat", sim, time.Now)
		for _, entry := range tt.entries {
			d, err := sim.deliver(entry)
			sim.handle(c, d, err)
			sim.commit(t.Context(), sim, c)
		}
		if sim.err != nil || sim.committed != tt.want {
			t.Errorf("%s: committed entry %d, %v; want %d", name, sim.committed, sim.err, tt.want)
		}
	}
}

func TestEndingCallIgnoresInputAndTimers(t *testing.T) {
	hangup := command(2*s, wire.ApplyAfterPlayback, `{"type":"hangup","source":"bot","delayBotDisconnectMs":20000}`)
	runCases(t, []testCase{
		{name: "no comfort prompt, timeout or further part", steps: []step{
			botDelayConfig(`"botNoInputTimeoutMs":4000,"botNoInputGiveUpTimeoutMs":7000`), callerSays(0, "hi"), hangup,
			{at: 3 * s, report: func(c *call) { c.botAccepted(question{Text: "hi", Part: 1, itemID: "item-1"}, 2) }},
		}, want: `0s asks hi part 1
			22s ends: hangup`},
		{name: "no digits", steps: []step{
			dtmfConfig(`"sendDTMF":true,"enabled":true,"maxDigits":4,"interDigitTimeoutMs":3000,"timeoutMs":8000`), callerPresses(1*s, "4"), hangup,
		}, want: `22s ends: hangup`},
		{name: "no resumed recognition", steps: []step{
			botDelayConfig(`"botNoInputTimeoutMs":1500,"resumeRecognitionTimeoutMs":3000,"resumeRecognitionSpeech":"I listen."`), callerSays(0, "hi"), hangup,
		}, want: `0s asks hi part 1
			1.5s says runtime: One moment, please.
			22s ends: hangup`},
		{name: "no resumed recognition after a playing prompt", mode: "audio", speech: 4 * s, steps: []step{
			botDelayConfig(`"botNoInputTimeoutMs":1500,"resumeRecognitionTimeoutMs":3000,"resumeRecognitionSpeech":"I listen."`), callerSays(0, "hi"), hangup,
		}, want: `0s asks hi part 1
			1.5s says runtime: One moment, please. 1.5s plays One moment, please.
			25.5s ends: hangup`},
	})
}
