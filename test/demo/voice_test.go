package demo

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"telapi/internal/audio"
	"telapi/internal/demo/voice"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// tone returns A-law with a sine of an RMS level in dBFS.
func tone(length time.Duration, level, hz float64) []byte {
	s := audio.Sound{Rate: voice.SampleRate, Samples: make([]int16, length.Milliseconds()*voice.SampleRate/1000)}
	for i := range s.Samples {
		s.Samples[i] = int16(math.Sqrt2 * math.Pow(10, level/20) * math.MaxInt16 * math.Sin(2*math.Pi*hz*float64(i)/voice.SampleRate))
	}
	return s.ALaw()
}

func quiet() []byte { return tone(1200*time.Millisecond, -90, 100) }

// voiceCall is a session whose caller speaks, in mode webrtc or audio.
type voiceCall struct {
	*harness.Browser
	caller *harness.Caller // nil in mode audio
	frames []byte          // A-law that arrived in frames
	sent   int             // frames
}

// startCall opens a session and, in mode webrtc, calls.
func startCall(t *testing.T, i *harness.Instance, mode string) *voiceCall {
	t.Helper()
	v := &voiceCall{Browser: connect(t, i, mode)}
	if mode == "webrtc" {
		v.dial()
	}
	return v
}

// dial makes a WebRTC call. The offer contains no candidates: they follow.
func (v *voiceCall) dial() {
	v.T.Helper()
	v.caller = harness.NewCaller(v.T)
	candidates := make(chan string, 100)
	v.control(fmt.Sprintf(`{"command":"webrtc_offer","callId":"call","sdp":%q}`, v.caller.Offer(func(init string) { candidates <- init })))
	for init := ""; init != "null"; {
		init = <-candidates
		v.control(`{"command":"webrtc_candidate","candidate":` + init + `}`)
	}
	v.until("control", `"webrtc_answer","callId":"call"`)
	v.until("control", `"callId":"call","candidate":null`)
	v.caller.WaitConnected()
}

func (v *voiceCall) control(payload string) { v.Send("control", "control", payload) }

// until reads frames up to one of a type that contains the text. Signals go to the caller.
func (v *voiceCall) until(kind, text string) (last harness.Received) {
	v.T.Helper()
	for string(last.Type) != kind || !strings.Contains(last.Raw, text) {
		last = v.Next()
		switch last.Type {
		case "control":
			v.signal(last.Control)
		case "audio":
			var frame struct{ Data []byte }
			_ = json.Unmarshal(last.Audio, &frame)
			v.frames = append(v.frames, frame.Data...)
		}
	}
	return last
}

// say sends the caller's voice in real time.
func (v *voiceCall) say(alaw []byte) {
	if v.caller != nil {
		v.caller.Say(alaw)
		return
	}
	start := time.Now()
	for frame := range slices.Chunk(alaw, voice.FrameBytes) {
		raw, _ := json.Marshal(map[string]any{"encoding": "alaw", "sampleRate": voice.SampleRate, "sequence": v.sent, "data": frame})
		v.Send("audio", "audio", string(raw))
		v.sent++
		time.Sleep(time.Until(start.Add(time.Duration(v.sent) * voice.FrameDuration)))
	}
}

// signal passes a control message to the caller, unless the session has mode audio.
func (v *voiceCall) signal(control []byte) {
	if v.caller != nil {
		v.caller.Signal(control)
	}
}

// heard returns what the caller has heard since the last call.
func (v *voiceCall) heard() (alaw []byte) {
	if v.caller != nil {
		return v.caller.Heard()
	}
	alaw, v.frames = v.frames, nil
	return alaw
}

// activeLevel returns the RMS level of the frames that are not silent, and their length.
func activeLevel(alaw []byte) (level float64, length time.Duration) {
	var active []byte
	for frame := range slices.Chunk(alaw, voice.FrameBytes) {
		if voice.Level(frame) > -50 {
			active = append(active, frame...)
		}
	}
	return voice.Level(active), voice.Duration(active)
}

// waitForTitle waits until the session's events contain a title n times.
func (f *fixture) waitForTitle(t *testing.T, session, title string, n int) {
	t.Helper()
	testkit.Until(t, title, func() bool { return strings.Count(f.titles(session), title) >= n })
}

var heardEvent = regexp.MustCompile(`heard (\d+\.\d) s, level −(\d+\.\d) dBFS`)

// The tests share one server.
func TestVoice(t *testing.T) {
	t.Parallel()
	f := newFixture(t, withMedia(t, harness.Env{}))
	f.startRuntime(t, "demo")
	for name, test := range map[string]func(t *testing.T, f *fixture){
		"the demo repeats what it hears over WebRTC": func(t *testing.T, f *fixture) { testRepeats(t, f, "webrtc") },
		"the demo repeats what it hears over frames": func(t *testing.T, f *fixture) { testRepeats(t, f, "audio") },
		"a voice over WebRTC interrupts playback":    func(t *testing.T, f *fixture) { testInterrupts(t, f, "webrtc") },
		"a voice over frames interrupts playback":    func(t *testing.T, f *fixture) { testInterrupts(t, f, "audio") },
		"telephone events are digits":                testDigits,
		"a call ends and starts again":               testCallAgain,
		"invalid signals are explained":              testInvalidSignals,
		"invalid audio frames are ignored":           testInvalidFrames,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, f)
		})
	}
}

func testRepeats(t *testing.T, f *fixture, mode string) {
	v := startCall(t, f.Instance, mode)
	f.waitForTitle(t, v.Session, "\nplayed\n", 1) // the greeting
	// Audio is sent once: on a busy machine some of it is lost, and a gap ends an
	// utterance. Then the caller repeats it.
	testkit.Until(t, "the demo has heard a second", func() bool {
		v.say(tone(time.Second, -20, 440))
		v.heard() // discards the greeting
		v.say(quiet())
		return strings.Contains(v.until("chat", "I heard ").Raw, "I heard 1.")
	})
	if v.caller == nil {
		v.frames = nil // the greeting
		v.until("audio", `"last":true`)
	}
	var back []byte
	testkit.Until(t, "the sound comes back", func() bool {
		back = append(back, v.heard()...)
		_, length := activeLevel(back)
		return length > 800*time.Millisecond
	})
	if level, _ := activeLevel(back); math.Abs(level+20) > 1 {
		t.Errorf("the level of what came back is %.1f dBFS, want −20", level)
	}
	all := heardEvent.FindAllStringSubmatch(f.titles(v.Session), -1)
	if all == nil {
		t.Fatalf("no event with what was heard: %s", f.titles(v.Session))
	}
	got := all[len(all)-1]
	seconds, _ := strconv.ParseFloat(got[1], 64)
	if level, _ := strconv.ParseFloat(got[2], 64); seconds < 0.9 || seconds > 2 || math.Abs(level-20) > 1 {
		t.Errorf("%s, want about 1 s and −20 dBFS", got[0])
	}
	if v.caller != nil && len(v.frames) > 0 {
		t.Error("a WebRTC call also got audio frames")
	}
}

func testInterrupts(t *testing.T, f *fixture, mode string) {
	v := startCall(t, f.Instance, mode)
	f.waitForTitle(t, v.Session, "\nplayed\n", 1) // the greeting
	v.Chat("help")                                // a long answer
	v.until("chat", "I understand:")
	f.waitForTitle(t, v.Session, "plays: I understand:", 1)
	v.say(tone(300*time.Millisecond, -20, 440))
	v.until("control", "stop_playback")
	f.waitForTitle(t, v.Session, "playback stopped", 1)
}

func testDigits(t *testing.T, f *fixture) {
	v := startCall(t, f.Instance, "webrtc")
	v.say(tone(100*time.Millisecond, -90, 100))
	for _, digit := range []string{"5", "5", "#"} {
		v.caller.Press(digit)
		v.until("chat", "You pressed "+digit+".")
	}
	if got := strings.Count(f.titles(v.Session), "(RTP)"); got != 3 {
		t.Errorf("%d digits, want 3: %s", got, f.titles(v.Session))
	}
}

// A session can call again, and a reloaded page replaces its call.
func testCallAgain(t *testing.T, f *fixture) {
	v := startCall(t, f.Instance, "webrtc")
	f.waitForTitle(t, v.Session, "plays: Hello", 1)
	v.control(`{"command":"webrtc_end"}`)
	f.waitForTitle(t, v.Session, "WebRTC call ended: the page ended it", 1)
	v.Chat("hello")
	if m := v.until("chat", "How are you?"); strings.Contains(m.Raw, "spoken") {
		t.Errorf("%s, want no speech without a call", m.Raw)
	}
	v.dial()
	f.waitForTitle(t, v.Session, "plays: Hello", 2)
	v.dial()
	f.waitForTitle(t, v.Session, "WebRTC call ended: replaced by a new call", 1)
	f.waitForTitle(t, v.Session, "plays: Hello", 3)
	v.caller.Close()
	f.waitForTitle(t, v.Session, "WebRTC call ended: the page closed it", 1)
	v.dial()
	v.Chat("hang up")
	v.until("control", `"reason":"hangup"`)
	if got := v.CloseCode(); got != 4503 {
		t.Errorf("close code %d, want 4503", got)
	}
}

func TestNextRuntimeAsksPageToCallAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, harness.Env{"SESSION_PING_INTERVAL": "10s"})
	stop := f.startRuntime(t, "first")
	v := startCall(t, f.Instance, "webrtc")
	f.waitForTitle(t, v.Session, "WebRTC call connected", 1)
	stop()
	f.startRuntime(t, "second")
	v.until("control", `"retry":true`)
	v.dial()
	f.waitForTitle(t, v.Session, "WebRTC call connected", 2)
}

func testInvalidSignals(t *testing.T, f *fixture) {
	v := &voiceCall{Browser: connect(t, f.Instance, "webrtc")}
	v.control(`{"command":"webrtc_candidate","candidate":{"candidate":"candidate:1 1 UDP 1 127.0.0.1 9 typ host"}}`)
	f.waitForTitle(t, v.Session, "ICE candidate ignored: send webrtc_offer first", 1)
	v.control(`{"command":"webrtc_end"}`) // without a call
	for payload, want := range map[string]string{
		`{"command":"webrtc_offer"}`:                                             "no audio with A-law",
		`{"command":"webrtc_offer","sdp":"rubbish"}`:                             "invalid SDP",
		`{"command":"webrtc_offer","sdp":"` + strings.Repeat("v", 40_000) + `"}`: "more than 32768",
	} {
		v.control(payload)
		if m := v.until("control", "webrtc_end"); !strings.Contains(m.Raw, want) {
			t.Errorf("%.60s: %s, want %q", payload, m.Raw, want)
		}
	}
	v.control(`{"command":"webrtc_offer","sdp":7}`) // ignored
	v.dial()
	f.waitForTitle(t, v.Session, "WebRTC call connected", 1)

	chat := &voiceCall{Browser: connect(t, f.Instance, "chat")}
	chat.control(`{"command":"webrtc_offer","sdp":"x"}`)
	chat.until("control", "This session has mode chat.")
}

func testInvalidFrames(t *testing.T, f *fixture) {
	v := startCall(t, f.Instance, "audio")
	for _, payload := range []string{
		`{}`, `{"data":7}`, `{"encoding":"opus","sampleRate":48000,"data":"AAAA"}`, `{"encoding":"alaw","sampleRate":8000,"data":"?"}`,
		fmt.Sprintf(`{"encoding":"alaw","sampleRate":8000,"data":"%s"}`, strings.Repeat("AAAA", 1000)),
	} {
		v.Send("audio", "audio", payload)
	}
	v.Chat("hello")
	v.until("chat", "How are you?")
}

// Not parallel: goroutines of other tests would count as leaks.
func TestVoiceCallLeaksNoGoroutines(t *testing.T) {
	before := goleak.IgnoreCurrent()
	i := harness.StartDev(t, harness.Env{"SESSION_RECONNECT_JITTER": "0s"}, true)
	v := startCall(t, i, "webrtc")
	v.say(tone(300*time.Millisecond, -20, 440))
	v.dial()
	v.Cut()
	if err := i.Stop(); err != nil {
		t.Error(err)
	}
	v.caller.Close()
	i.Client.CloseIdleConnections()
	harness.VerifyNoLeaks(t, before)
}
