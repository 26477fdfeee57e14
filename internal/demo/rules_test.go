package demo

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
)

const s = time.Second

func TestSilenceOfTheBotIsDealtWithByIndependentTimers(t *testing.T) {
	quick := delays(`"botNoInputTimeoutMs":2000,"botNoInputSpeech":"Bear with us.","botNoInputRetries":1,"botNoInputGiveUpTimeoutMs":7000`)
	const gaveUp = ` cancels item-1
		%[1]s status {"event":"bot_timeout"}
		%[1]s says runtime: The bot stays silent, so I stopped waiting. Try something else.`
	play(t, []scene{
		{rule: "a comfort prompt, its repeats, and the end of patience", cues: []cue{quick, caller(0, "hi")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			4s says runtime: Bear with us.
			7s` + fmt.Sprintf(gaveUp, "7s")},
		{rule: "patience ends while prompts remain", cues: []cue{quick, delays(`"botNoInputRetries":10,"botNoInputGiveUpTimeoutMs":5000`), caller(0, "hi")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			4s says runtime: Bear with us.
			5s` + fmt.Sprintf(gaveUp, "5s")},
		{rule: "without repeats there is one prompt, and patience is as long as it is", cues: []cue{quick, delays(`"botNoInputRetries":0,"botNoInputGiveUpTimeoutMs":120000`), caller(0, "hi")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			2m0s` + fmt.Sprintf(gaveUp, "2m0s")},
		{rule: "an answer ends the silence", cues: []cue{quick, caller(0, "hi"), answers(3*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			3s says bot: Hello.`},
		{rule: "of two answers that are owed, the first begins the silence anew", cues: []cue{quick, caller(0, "hi"), caller(1*s, "ho"), answers(6*s, "item-1", "Hello."), answers(9*s, "item-2", "Well.")}, want: `0s asks hi part 1
			1s asks ho part 1
			2s says runtime: Bear with us.
			4s says runtime: Bear with us.
			6s says bot: Hello.
			8s says runtime: Bear with us.
			9s says bot: Well.`},
		{rule: "a changed setting holds for the silence that has begun", cues: []cue{caller(0, "hi"),
			orders(1*s, wire.Immediate, `{"type":"update_bot_delay_config","source":"bot","botNoInputTimeoutMs":1500,"botNoInputRetries":0}`), answers(9*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			1.5s says runtime: One moment, please.
			9s says bot: Hello.`},
		{rule: "a prompt that is spoken is repeated so long after its end", mode: "audio", speech: 3 * s, cues: []cue{quick, delays(`"botNoInputGiveUpTimeoutMs":60000`), caller(0, "hi"), answers(20*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us. 2s plays Bear with us.
			7s says runtime: Bear with us. 7s plays Bear with us.
			20s says bot: Hello. 20s plays Hello.`},
		{rule: "the answer stops a prompt", mode: "audio", speech: 3 * s, cues: []cue{quick, caller(0, "hi"), answers(3*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us. 2s plays Bear with us.
			3s hush 3s says bot: Hello. 3s plays Hello.`},
		{rule: "the answer lets a prompt finish where it may not stop it", mode: "audio", speech: 3 * s, cues: []cue{quick, delays(`"abortPlayOnBotMessage":false`), caller(0, "hi"), answers(3*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us. 2s plays Bear with us.
			3s says bot: Hello. 5s plays Hello.`},
		{rule: "recognition resumes after a prompt, with words of its own", cues: []cue{quick, delays(`"resumeRecognitionTimeoutMs":1000,"resumeRecognitionSpeech":"I listen.","botNoInputRetries":0`), caller(0, "hi"), answers(6*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s says runtime: Bear with us.
			3s status {"event":"recognition_resumed"}
			3s says runtime: I listen.
			6s says bot: Hello.`},
		{rule: "audio from a URL instead of speech", cues: []cue{quick, delays(`"botNoInputUrl":"https://media.example/wait.wav","botNoInputRetries":0`), caller(0, "hi"), answers(3*s, "item-1", "Hello.")}, want: `0s asks hi part 1
			2s action {"name":"play_audio","url":"https://media.example/wait.wav"}
			3s says bot: Hello.`},
		{rule: "nobody is left alone while something plays", mode: "audio", speech: 5 * s, cues: []cue{quick, answers(0, "", "A long story."), orders(0, wire.Immediate, `{"type":"update_dtmf_config","source":"bot","bargeIn":false}`), caller(1*s, "hi"), answers(8*s, "item-1", "Hello.")}, want: `0s says bot: A long story. 0s plays A long story.
			1s asks hi part 1
			7s says runtime: Bear with us. 7s plays Bear with us.
			8s cancels item-1
			8s hush
			8s status {"event":"bot_timeout"}
			8s says runtime: The bot stays silent, so I stopped waiting. Try something else.
			8s says bot: Hello. 8s plays Hello.`},
	})
}

func TestCallEndsOncePlaybackHasDrained(t *testing.T) {
	hangup := func(at time.Duration, more string) cue {
		return orders(at, wire.AfterPlayback, `{"type":"hangup","source":"bot","reason":"done"`+more+`}`)
	}
	play(t, []scene{
		{rule: "at once where nothing plays", cues: []cue{answers(0, "", "Bye."), hangup(1*s, "")}, want: `0s says bot: Bye. 1s ends: hangup`},
		{rule: "not before the last word", mode: "audio", speech: 30 * s, cues: []cue{answers(0, "", "A story."), answers(0, "", "Bye."), hangup(0, "")},
			want: `0s says bot: A story. 0s plays A story. 0s says bot: Bye. 30s plays Bye. 1m0s ends: hangup`},
		{rule: "after the delay that was asked for", mode: "audio", speech: 2 * s, cues: []cue{answers(0, "", "Bye."), hangup(0, `,"delayBotDisconnectMs":700`)},
			want: `0s says bot: Bye. 0s plays Bye. 2.7s ends: hangup`},
		{rule: "though speech never begins", mode: "audio", speech: -1, cues: []cue{answers(0, "", "Bye."), hangup(0, "")},
			want: `0s says bot: Bye. 0s plays Bye. 15s hush 15s ends: hangup`},
		{rule: "though speech never ends", mode: "audio", speech: -1, cues: []cue{answers(0, "", "Bye."), {at: 1 * s, tell: func(c *call) { c.playing(10 * s) }}, hangup(2*s, "")},
			want: `0s says bot: Bye. 0s plays Bye. 14s hush 14s ends: hangup`},
		{rule: "by a transfer, too", mode: "audio", speech: 2 * s, cues: []cue{answers(0, "", "Wait."), orders(0, wire.AfterPlayback, `{"type":"transfer","source":"bot","target":"tel:+4930","message":"soon"}`)},
			want: `0s says bot: Wait. 0s plays Wait. 2s action {"name":"transfer","target":"tel:+4930","message":"soon"} 2s ends: transferred`},
		{rule: "once, and without further questions", mode: "audio", speech: 2 * s, cues: []cue{answers(0, "", "Bye."), hangup(0, ""), hangup(0, ""), caller(1*s, "wait"), presses(1*s, "1")},
			want: `0s says bot: Bye. 0s plays Bye. 2s ends: hangup`},
	})
}

func TestCommandsTakeEffectWhenTheirApplySaysSo(t *testing.T) {
	play(t, []scene{
		{rule: "update_* at once, ahead of speech", mode: "audio", speech: 10 * s, cues: []cue{answers(0, "", "A story."),
			orders(1*s, wire.Immediate, `{"type":"update_dtmf_config","source":"bot","bargeIn":false}`), caller(2*s, "stop")},
			want: `0s says bot: A story. 0s plays A story. 2s asks stop part 1
				15s says runtime: One moment, please. 15s plays One moment, please.
				30s says runtime: One moment, please. 30s plays One moment, please.
				32s cancels item-1 32s hush 32s status {"event":"bot_timeout"} 32s says runtime: The bot stays silent, so I stopped waiting. Try something else.`},
		{rule: "others in their place", mode: "audio", speech: 10 * s, cues: []cue{answers(0, "", "A story."),
			orders(1*s, wire.InOrder, `{"type":"set_barge_in","source":"bot","enabled":false}`), caller(2*s, "stop"), answers(3*s, "item-1", "Well."), caller(4*s, "stop"), answers(5*s, "item-2", "No.")},
			want: `0s says bot: A story. 0s plays A story. 2s hush 2s control {"command":"stop_playback"} 2s asks stop part 1
				3s says bot: Well. 3s plays Well. 4s asks stop part 1 5s says bot: No. 13s plays No.`},
		{rule: "a pause holds up what follows", mode: "audio", speech: 1 * s, cues: []cue{answers(0, "", "One."), {entry: `{"kind":"bot_event","event":"pause","value":2500}`}, answers(0, "", "Two.")},
			want: `0s says bot: One. 0s plays One. 0s says bot: Two. 1s plays silence 3.5s plays Two.`},
		{rule: "a message that must not come from the cache", mode: "audio", speech: 1 * s, cues: []cue{{entry: `{"kind":"bot_message","text":"Fresh.","form":"plain","disableTtsCache":true}`}, answers(0, "", "Kept.")},
			want: `0s says bot: Fresh. 0s plays Fresh. (not from the cache) 0s says bot: Kept. 1s plays Kept.`},
		{rule: "a voice message is spoken in a chat", speech: 1 * s, cues: []cue{{entry: `{"kind":"bot_message","text":"Listen.","form":"voice"}`}},
			want: `0s says bot: Listen. 0s plays Listen.`},
	})
}

func TestCallerIsAskedWhereTheFlowInsistsOnIt(t *testing.T) {
	hangup := orders(0, wire.AfterPlayback, `{"type":"hangup","source":"bot","requireConfirmation":true}`)
	answer := func(at time.Duration, result string) cue {
		return cue{at: at, entry: `{"kind":"frame","message":{"type":"action_result","actionResult":` + result + `}}`}
	}
	const asked = `0s action {"command":{"type":"hangup","source":"bot"},"name":"confirm"} `
	const refused = `s says runtime: That was not confirmed, so it is not done.`
	play(t, []scene{
		{rule: "yes", cues: []cue{hangup, answer(1*s, `{"name":"another","confirmed":true}`), answer(2*s, `{"name":"confirm","confirmed":true}`)}, want: asked + `2s ends: hangup`},
		{rule: "no", cues: []cue{hangup, answer(1*s, `{"name":"confirm"}`), answer(2*s, `{"name":"confirm","confirmed":true}`)}, want: asked + `1` + refused},
		{rule: "silence", cues: []cue{hangup}, want: asked + `30` + refused},
	})
}

func TestCallerInterruptsWhereThatIsPermitted(t *testing.T) {
	story := answers(0, "", "A story.")
	const told, stopped = `0s says bot: A story. 0s plays A story. `, `1s hush 1s control {"command":"stop_playback"} `
	var scenes []scene
	for _, c := range []struct {
		bargeIn, onDTMF bool
		want            string
	}{{true, true, stopped}, {true, false, ""}, {false, true, ""}, {false, false, ""}} {
		scenes = append(scenes, scene{rule: fmt.Sprintf("by a digit: bargeIn %v, bargeInOnDTMF %v", c.bargeIn, c.onDTMF), mode: "audio", speech: 10 * s,
			cues: []cue{dtmf(fmt.Sprintf(`"bargeIn":%v,"bargeInOnDTMF":%v,"sendDTMF":false`, c.bargeIn, c.onDTMF)), story, presses(1*s, "5")}, want: told + c.want})
	}
	silent := delays(`"botNoInputTimeoutMs":60000`)
	play(t, append(scenes,
		scene{rule: "by as many words as it takes", mode: "audio", speech: 10 * s, cues: []cue{silent, dtmf(`"bargeInMinWordCount":3`), story, caller(1*s, "please do stop"), answers(2*s, "item-1", "Yes.")},
			want: told + stopped + `1s asks please do stop part 1 2s says bot: Yes. 2s plays Yes.`},
		scene{rule: "not by fewer words, which are heard all the same", mode: "audio", speech: 10 * s, cues: []cue{silent, dtmf(`"bargeInMinWordCount":3`), story, caller(1*s, "do stop"), answers(2*s, "item-1", "Yes.")},
			want: told + `1s asks do stop part 1 2s says bot: Yes. 10s plays Yes.`},
		scene{rule: "everything that was to be said is dropped", mode: "audio", speech: 10 * s, cues: []cue{silent, story, answers(0, "", "Another."), caller(1*s, "stop"), answers(2*s, "item-1", "Yes.")},
			want: `0s says bot: A story. 0s plays A story. 0s says bot: Another. ` + stopped + `1s asks stop part 1 2s says bot: Yes. 2s plays Yes.`},
	))
}

func TestDigitsAreCollectedAsConfigured(t *testing.T) {
	calm := delays(`"botNoInputTimeoutMs":60000,"botNoInputGiveUpTimeoutMs":120000,"botNoInputRetries":0`)
	collect := dtmf(`"enabled":true,"maxDigits":4,"interDigitTimeoutMs":3000,"terminator":"#"`)
	submitted := func(at, digits string) string {
		return fmt.Sprintf(`%[1]s status {"digits":"%[2]s","event":"dtmf"} %[1]s asks %[2]s part 1 `, at, digits)
	}
	answered := func(n int) cue { return answers(30*s, fmt.Sprint("item-", n), "Right.") }
	const right = `30s says bot: Right. `
	play(t, []scene{
		{rule: "one by one unless they are to be collected", cues: []cue{calm, presses(0, "1"), presses(1*s, "2"), answered(1), answered(2)},
			want: submitted("0s", "1") + submitted("1s", "2") + right + right},
		{rule: "up to the most", cues: []cue{calm, collect, presses(0, "1234"), answered(1)}, want: submitted("0s", "1234") + right},
		{rule: "up to the digit that submits", cues: []cue{calm, collect, presses(0, "12"), presses(2*s, "#"), answered(1)}, want: submitted("2s", "12") + right},
		{rule: "up to the last one for a while", cues: []cue{calm, collect, presses(0, "1"), presses(2*s, "2"), answered(1)}, want: submitted("5s", "12") + right},
		{rule: "for as long as all may take", cues: []cue{calm, collect, dtmf(`"timeoutMs":4000`), presses(0, "1"), presses(2*s, "2"), answered(1)}, want: submitted("4s", "12") + right},
		{rule: "without a limit where there is none", cues: []cue{calm, collect, dtmf(`"maxDigits":0,"terminator":""`), presses(0, "123456#"), answered(1)}, want: submitted("3s", "123456#") + right},
		{rule: "only those that count", cues: []cue{calm, collect, dtmf(`"dtmfDigits":"12"`), presses(0, "19A2#"), answered(1)}, want: submitted("0s", "12") + right},
		{rule: "none where they are not to be sent", cues: []cue{calm, collect, dtmf(`"sendDTMF":false`), presses(0, "1234#")}, want: ""},
		{rule: "what was collected goes when collecting ends", cues: []cue{calm, collect, presses(0, "12"), orders(1*s, wire.Immediate, `{"type":"update_dtmf_config","source":"bot","enabled":false}`), answered(1)},
			want: submitted("1s", "12") + right},
		{rule: "nothing is nothing", cues: []cue{calm, collect, presses(0, "#")}, want: ""},
	})
}

func TestConversationGoesOn(t *testing.T) {
	play(t, []scene{
		{rule: "in parts, each asked for", cues: []cue{caller(0, "hi"), {at: 1 * s, tell: func(c *call) { c.accepted(question{Text: "hi", Part: 1}, 2) }}, answers(2*s, "item-1", "One."), answers(3*s, "item-2", "Two.")},
			want: `0s asks hi part 1 1s asks hi part 2 2s says bot: One. 3s says bot: Two.`},
		{rule: "after a bot that cannot be reached", cues: []cue{caller(0, "hi"), {at: 1 * s, tell: func(c *call) { c.unreachable("item-1") }}},
			want: `0s asks hi part 1 1s cancels item-1 1s says runtime: The bot cannot be reached. Try again.`},
		{rule: "after a provider's error", cues: []cue{caller(0, "hi"), {at: 1 * s, entry: `{"kind":"provider_error","workItemId":"item-1","error":{"code":"X"}}`}},
			want: `0s asks hi part 1 1s says runtime: The bot could not answer. Try something else.`},
		{rule: "after an answer that did not come in time", cues: []cue{caller(0, "hi"), {at: 1 * s, entry: `{"kind":"timeout","workItemId":"item-1","workItemKind":"bot"}`}},
			want: `0s asks hi part 1 1s says runtime: The bot did not answer in time. Try something else.`},
		{rule: "after a command that was denied", cues: []cue{{entry: `{"kind":"command_denied","reason":"target_not_allowed","command":{"type":"transfer","source":"bot"}}`}},
			want: `0s says runtime: A transfer was denied: target_not_allowed.`},
		{rule: "past what is not for it", cues: []cue{{entry: `{"kind":"nlu_data","nluData":{}}`}, {entry: `{"kind":"of_tomorrow"}`}, {entry: `{"kind":"frame","message":{"type":"chat","chat":{"text":7}}}`},
			{entry: `{"kind":"frame","message":{"type":"browser_action","browserAction":{"type":"click"}}}`}, caller(0, "  "), {entry: `{"kind":"bot_event","event":"typing","value":{"enable":true}}`}},
			want: `0s status {"event":"typing","value":{"enable":true}}`},
	})
}

func TestRuntimeThatTakesOverKnowsWhatWasConfiguredAndGreetsNobodyTwice(t *testing.T) {
	st := &stage{ledger: newLedger(), begun: time.Now()}
	c := newCall("chat", st, time.Now)
	decode := func(raw string) (e wire.Entry) {
		if err := json.Unmarshal([]byte(raw), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	connected := decode(`{"kind":"session","event":"connected"}`)
	c.entry(connected)
	c.entry(connected)
	if len(st.seen) != 1 {
		t.Errorf("seen %q, want one greeting", st.seen)
	}
	st.seen = nil
	c = newCall("chat", st, time.Now)
	for _, past := range []wire.Entry{connected, decode(caller(0, "hi").entry), decode(dtmf(`"enabled":true,"maxDigits":2`).entry), decode(dtmf(`"terminator":"#"`).entry)} {
		c.remember(past)
	}
	c.entry(connected)
	c.digit("1")
	if len(st.seen) != 0 {
		t.Errorf("seen %q, want nothing yet", st.seen)
	}
	c.digit("2")
	if len(st.seen) != 2 || !strings.HasSuffix(st.seen[1], "asks 12 part 1") {
		t.Errorf("seen %q", st.seen)
	}
}

func TestCallThatIsLeavingBeginsNothing(t *testing.T) {
	hangup := orders(2*s, wire.AfterPlayback, `{"type":"hangup","source":"bot","delayBotDisconnectMs":20000}`)
	play(t, []scene{
		{rule: "no comfort, no end of patience, no further part of an answer", cues: []cue{
			delays(`"botNoInputTimeoutMs":4000,"botNoInputGiveUpTimeoutMs":7000`), caller(0, "hi"), hangup,
			{at: 3 * s, tell: func(c *call) { c.accepted(question{Text: "hi", Part: 1, itemID: "item-1"}, 2) }},
		}, want: `0s asks hi part 1
			22s ends: hangup`},
		{rule: "no digits to submit", cues: []cue{
			dtmf(`"sendDTMF":true,"enabled":true,"maxDigits":4,"interDigitTimeoutMs":3000,"timeoutMs":8000`), presses(1*s, "4"), hangup,
		}, want: `22s ends: hangup`},
		{rule: "no recognition to resume", cues: []cue{
			delays(`"botNoInputTimeoutMs":1500,"resumeRecognitionTimeoutMs":3000,"resumeRecognitionSpeech":"I listen."`), caller(0, "hi"), hangup,
		}, want: `0s asks hi part 1
			1.5s says runtime: One moment, please.
			22s ends: hangup`},
		{rule: "nor after a prompt that is still playing", mode: "audio", speech: 4 * s, cues: []cue{
			delays(`"botNoInputTimeoutMs":1500,"resumeRecognitionTimeoutMs":3000,"resumeRecognitionSpeech":"I listen."`), caller(0, "hi"), hangup,
		}, want: `0s asks hi part 1
			1.5s says runtime: One moment, please. 1.5s plays One moment, please.
			25.5s ends: hangup`},
	})
}
