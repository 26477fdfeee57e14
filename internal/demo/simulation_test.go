package demo

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/background"
)

// step is an entry or a report and the time at which it arrives.
type step struct {
	at     time.Duration
	entry  string
	report func(*call)
}

// simulation runs a call with a fake clock and logs its effects with their time, such
// as "2s says bot: hello".
type simulation struct {
	*loopState
	start     time.Time
	steps     []step
	log       []string
	asked     int           // questions to the bot
	speech    time.Duration // duration of every utterance
	stuck     bool          // whether playback never ends
	stop      context.CancelFunc
	received  int // entries
	committed int // number of the newest one
}

const maxDuration = time.Hour // longer than any timer

// simulate runs a call and returns the log.
func simulate(t *testing.T, mode string, speech time.Duration, steps ...step) (log string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{loopState: newLoopState(), start: time.Now(), steps: steps, speech: max(speech, -speech), stuck: speech < 0}
		entries := len(slices.DeleteFunc(slices.Clone(steps), func(c step) bool { return c.report != nil }))
		c := newCall(mode, s, time.Now)
		c.greeted = true
		ctx, cancel := context.WithTimeout(t.Context(), maxDuration)
		defer cancel()
		if err := loop(ctx, s, c, s.loopState); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		log = strings.Join(s.log, "\n")
		if !c.needsEntries() && s.committed != entries {
			t.Errorf("committed %d entries, want %d", s.committed, entries)
		}
	})
	return log
}

func (s *simulation) Receive(ctx context.Context) (callruntime.Delivery, error) {
	for len(s.steps) > 0 {
		next := s.steps[0]
		s.steps = s.steps[1:]
		time.Sleep(next.at - time.Since(s.start))
		if next.report != nil {
			s.reports <- next.report
			continue
		}
		return s.deliver(next.entry)
	}
	<-ctx.Done()
	return callruntime.Delivery{}, ctx.Err()
}

func (s *simulation) deliver(entry string) (callruntime.Delivery, error) {
	s.received++
	d := callruntime.Delivery{Position: fmt.Sprint(s.received), JSON: []byte(entry)}
	return d, json.Unmarshal(d.JSON, &d.Entry)
}

func (s *simulation) Commit(_ context.Context, position string) (err error) {
	s.committed, err = strconv.Atoi(position)
	return err
}

func (s *simulation) record(format string, args ...any) {
	s.log = append(s.log, fmt.Sprint(time.Since(s.start))+" "+fmt.Sprintf(format, args...))
}

func (s *simulation) send(t wire.MessageType, payload any) string {
	if c, ok := payload.(chat); ok {
		if c.Unfinished != "" {
			c.Text += " [" + c.Unfinished + "]"
		}
		s.record("says %s: %s", c.From, c.Text)
		return ""
	}
	raw, _ := json.Marshal(payload, json.Deterministic(true))
	s.record("%s %s", t, raw)
	return ""
}

func (s *simulation) askBot(q question) string {
	s.asked++
	s.record("asks %s%s part %d", q.Text, q.DTMF, q.Part)
	if q.Text != "" && q.Part == 1 && s.entry == "" {
		s.record("outside of an entry")
	}
	return fmt.Sprint("item-", s.asked)
}

func (s *simulation) cancel(id string) { s.record("cancels %s", id) }

func (s *simulation) play(i item) {
	what := i.Text
	if i.DisableCache {
		what += " (not from the cache)"
	}
	length := s.speech
	if i.pause > 0 {
		what, length = "silence", i.pause
	}
	s.record("plays %s", what)
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	report := func(f func(*call)) {
		s.reports <- func(c *call) {
			if ctx.Err() == nil {
				f(c)
			}
		}
	}
	if s.stuck {
		return
	}
	go func() {
		report(func(c *call) { c.playing(length) })
		if background.Sleep(ctx, length) == nil {
			report(func(c *call) { c.played() })
		}
	}()
}

func (s *simulation) markRead(callruntime.Delivery) {}

func (s *simulation) publishSpeaking() {}

func (s *simulation) publishUtterance(utterance) {}

func (s *simulation) recognize(u utterance) { s.record("recognizes %v", u.duration()) }

func (s *simulation) answer(offer signal) error {
	if offer.SDP == "invalid" {
		return errors.New("invalid SDP")
	}
	s.record("answers %s", offer.SDP)
	return nil
}

func (s *simulation) addCandidate(candidate jsontext.Value) { s.record("candidate %s", candidate) }

func (s *simulation) closeWebRTC() { s.record("closes call") }

func (s *simulation) stopPlayback() { s.stop(); s.record("stops playback") }

func (s *simulation) end(reason string) { s.record("ends: %s", reason) }

func (s *simulation) publish(EventKind, string) {}

// Constructors of steps.

func callerSays(at time.Duration, text string) step {
	return step{at: at, entry: fmt.Sprintf(`{"kind":"frame","message":{"type":"chat","chat":{"text":%q}}}`, text)}
}

func callerPresses(at time.Duration, digits string) step {
	return step{at: at, entry: fmt.Sprintf(`{"kind":"frame","message":{"type":"browser_action","browserAction":{"type":"dtmf","digit":%q}}}`, digits)}
}

func botAnswer(at time.Duration, itemID, text string) step {
	return step{at: at, entry: fmt.Sprintf(`{"kind":"bot_message","workItemId":%q,"text":%q,"form":"plain"}`, itemID, text)}
}

func command(at time.Duration, apply wire.ApplyMode, command string) step {
	return step{at: at, entry: fmt.Sprintf(`{"kind":"command","apply":%q,"command":%s}`, apply, command)}
}

func botDelayConfig(fields string) step {
	return command(0, wire.ApplyImmediately, `{"type":"update_bot_delay_config","source":"bot",`+fields+`}`)
}

func dtmfConfig(fields string) step {
	return command(0, wire.ApplyImmediately, `{"type":"update_dtmf_config","source":"bot",`+fields+`}`)
}

// testCase is a sequence of steps and the expected log.
type testCase struct {
	name   string
	mode   string        // default chat
	speech time.Duration // negative: playback never ends
	steps  []step
	want   string
}

func runCases(t *testing.T, cases []testCase) {
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			if tt.mode == "" {
				tt.mode = "chat"
			}
			want := strings.Join(strings.Fields(tt.want), " ")
			got := simulate(t, tt.mode, tt.speech, tt.steps...)
			if strings.Join(strings.Fields(got), " ") != want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
		})
	}
}

func callerStartsSpeaking(at time.Duration) step {
	return step{at: at, report: (*call).speechStarted}
}

func callerStopsSpeaking(at time.Duration) step {
	return step{at: at, report: func(c *call) { c.speechEnded(utterance{id: "heard", alaw: make([]byte, 2*sampleRate)}) }}
}

func control(at time.Duration, payload string) step {
	return step{at: at, entry: `{"kind":"frame","message":{"type":"control","control":` + payload + `}}`}
}

var echo = step{report: func(c *call) { c.echo = true }}

func TestVoiceIsRepeatedOrRecognized(t *testing.T) {
	const heard = `says bot: I heard 2.0 s. Listen: `
	recognized := func(at time.Duration, text string) step {
		return step{at: at, report: func(c *call) { c.recognized("heard", text) }}
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
	connected := step{at: 1 * s, report: (*call).webrtcConnected}
	offer := control(0, `{"command":"webrtc_offer","sdp":"v=0"}`)
	const greets = `1s plays Hello, this is the demo bot. Say help to hear what I understand. `
	runCases(t, []testCase{
		{name: "answered and ended by the page", mode: "webrtc", speech: 1 * s, steps: []step{offer, control(0, `{"command":"webrtc_candidate","candidate":null}`), connected, connected,
			control(3*s, `{"command":"webrtc_end"}`), control(4*s, `{"command":"webrtc_end"}`), botAnswer(5*s, "", "Not spoken.")},
			want: `0s answers v=0 0s candidate null ` + greets + `3s closes call 5s says bot: Not spoken.`},
		{name: "ended during speech", mode: "webrtc", speech: 9 * s, steps: []step{offer, connected, control(3*s, `{"command":"webrtc_end"}`)},
			want: `0s answers v=0 ` + greets + `3s closes call 3s stops playback 3s control {"command":"stop_playback"}`},
		{name: "rejected", mode: "webrtc", steps: []step{control(0, `{"command":"webrtc_offer","sdp":"invalid"}`)},
			want: `0s control {"command":"webrtc_end","reason":"The call was rejected: invalid SDP."} 0s closes call`},
		{name: "replaced", mode: "webrtc", steps: []step{offer, offer}, want: `0s answers v=0 0s closes call 0s answers v=0`},
		{name: "lost", mode: "webrtc", steps: []step{offer, {at: 2 * s, report: func(c *call) { c.webrtcEnded(true) }}},
			want: `0s answers v=0 2s control {"command":"webrtc_end","reason":"The connection was lost.","retry":true} 2s closes call`},
		{name: "closed by the page", mode: "webrtc", steps: []step{offer, {at: 2 * s, report: func(c *call) { c.webrtcEnded(false) }}}, want: `0s answers v=0 2s closes call`},
		{name: "ended by the bot", mode: "webrtc", steps: []step{offer, command(1*s, wire.ApplyAfterPlayback, `{"type":"hangup","source":"bot"}`)},
			want: `0s answers v=0 1s control {"command":"webrtc_end","reason":"hangup"} 1s closes call 1s ends: hangup`},
		{name: "other mode", mode: "audio", steps: []step{offer},
			want: `0s control {"command":"webrtc_end","reason":"This session has mode audio. Request a token with mode webrtc."}`},
		{name: "with call ID", mode: "webrtc", steps: []step{control(0, `{"command":"webrtc_offer","callId":"a","sdp":"v=0"}`), control(1*s, `{"command":"webrtc_offer","callId":"b","sdp":"v=1"}`),
			control(2*s, `{"command":"webrtc_candidate","callId":"a","candidate":1}`), control(2*s, `{"command":"webrtc_candidate","callId":"b","candidate":2}`), control(3*s, `{"command":"webrtc_end","callId":"a"}`),
			{at: 4 * s, report: func(c *call) { c.webrtcEnded(true) }}},
			want: `0s answers v=0 1s closes call 1s answers v=1 2s candidate 2 4s control {"command":"webrtc_end","callId":"b","reason":"The connection was lost.","retry":true} 4s closes call`},
		{name: "no signals", mode: "webrtc", steps: []step{control(0, `{"command":"enable_text_chat"}`), control(0, `{"command":7}`), control(0, `{}`)}, want: ``},
	})
}

func TestAudioFramesAreHeard(t *testing.T) {
	audio := func(at time.Duration, payload string) step {
		return step{at: at, entry: `{"kind":"frame","message":{"type":"audio","audio":` + payload + `}}`}
	}
	const format = `{"encoding":"alaw","sampleRate":%d,"data":%q}`
	var frames, wrongRate []step
	for chunk := range slices.Chunk(sound(s, -20, tone(300)), maxChunk) {
		at, data := time.Duration(len(frames))*soundLength(chunk), base64.StdEncoding.EncodeToString(chunk)
		frames = append(frames, audio(at, fmt.Sprintf(format, sampleRate, data)))
		wrongRate = append(wrongRate, audio(at, fmt.Sprintf(format, 2*sampleRate, data)))
	}
	frames = append(frames, audio(s, `{"data":"1dXV"}`), audio(s, `{"data":1}`)) // ignored
	runCases(t, []testCase{
		{name: "in mode audio", mode: "audio", steps: frames, want: `1.8s recognizes 1s`},
		{name: "wrong sample rate", mode: "audio", steps: wrongRate, want: ``},
		{name: "in mode webrtc", mode: "webrtc", steps: frames, want: ``},
		{name: "in mode chat", steps: frames, want: ``},
	})
}
