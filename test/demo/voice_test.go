package demo

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/internal/speech"
	"telapi/test/harness"
)

// The audio of a call is A-law in frames.
const (
	sampleRate    = 8000
	frameBytes    = 160
	frameDuration = 20 * time.Millisecond
)

// tone returns A-law with a sine of an RMS level in dBFS.
func tone(length time.Duration, level, hz float64) []byte {
	s := speech.Sound{Rate: sampleRate, Samples: make([]int16, length.Milliseconds()*sampleRate/1000)}
	for i := range s.Samples {
		s.Samples[i] = int16(math.Sqrt2 * math.Pow(10, level/20) * math.MaxInt16 * math.Sin(2*math.Pi*hz*float64(i)/sampleRate))
	}
	return s.ALaw()
}

func quiet() []byte { return tone(1200*time.Millisecond, -90, 100) }

// voiceCall is a session of mode audio whose caller speaks. The tests of the playground
// also call in mode webrtc.
type voiceCall struct {
	*harness.Browser
	frames []byte // A-law that arrived in frames
	sent   int    // frames
}

func startCall(t *testing.T, i *harness.Instance) *voiceCall {
	t.Helper()
	return &voiceCall{Browser: connect(t, i, "audio")}
}

// until reads frames up to one of a type that contains the text.
func (v *voiceCall) until(kind, text string) (last harness.Received) {
	v.T.Helper()
	for string(last.Type) != kind || !strings.Contains(last.Raw, text) {
		last = v.Next()
		if last.Type == "audio" {
			var frame struct{ Data []byte }
			_ = json.Unmarshal(last.Audio, &frame)
			v.frames = append(v.frames, frame.Data...)
		}
	}
	return last
}

// say sends the caller's voice in real time.
func (v *voiceCall) say(alaw []byte) {
	start := time.Now()
	for frame := range slices.Chunk(alaw, frameBytes) {
		raw, _ := json.Marshal(map[string]any{"encoding": "alaw", "sampleRate": sampleRate, "sequence": v.sent, "data": frame})
		v.Send("audio", "audio", string(raw))
		v.sent++
		time.Sleep(time.Until(start.Add(time.Duration(v.sent) * frameDuration)))
	}
}
