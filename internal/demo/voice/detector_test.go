package voice

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/audio"
	"telapi/test/testkit"
)

// sound returns A-law with an RMS level in dBFS. wave returns values with an RMS of 1.
func sound(length time.Duration, level float64, wave func(seconds float64) float64) []byte {
	s := audio.Sound{Rate: SampleRate, Samples: make([]int16, length.Milliseconds()*SampleRate/1000)}
	amplitude := math.Pow(10, level/20) * math.MaxInt16
	for i := range s.Samples {
		s.Samples[i] = int16(max(math.MinInt16, min(math.MaxInt16, amplitude*wave(float64(i)/SampleRate))))
	}
	return s.ALaw()
}

func tone(hz float64) func(float64) float64 {
	return func(t float64) float64 { return math.Sqrt2 * math.Sin(2*math.Pi*hz*t) }
}

func noise(seed uint64) func(float64) float64 {
	r := rand.New(rand.NewPCG(seed, seed))
	return func(float64) float64 { return r.NormFloat64() }
}

func silence(length time.Duration) []byte { return sound(length, -90, tone(100)) }

// speech returns syllables of 180 ms with gaps of 80 ms.
func speech(length time.Duration, level float64) (alaw []byte) {
	for len(alaw) < int(length.Milliseconds())*SampleRate/1000 {
		alaw = slices.Concat(alaw, sound(180*time.Millisecond, level, tone(220)), sound(80*time.Millisecond, -60, noise(1)))
	}
	return alaw
}

// hear returns the times at which the caller starts and stops speaking, and the utterances.
func hear(t *testing.T, limit time.Duration, alaw []byte) (times []time.Duration, said []Utterance) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		note := func() { times = append(times, time.Since(start)) }
		l := NewListener(limit, note, func(u Utterance) { note(); said = append(said, u) })
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go l.Run(ctx)
		for chunk := range slices.Chunk(alaw, FrameBytes) {
			time.Sleep(FrameDuration)
			l.Hear(chunk)
			synctest.Wait()
		}
		time.Sleep(time.Minute)
	})
	return times, said
}

const s = time.Second

func TestListenerTellsSpeechFromNoise(t *testing.T) {
	for name, c := range map[string]struct {
		alaw []byte
		want int // utterances
	}{
		"silence":                  {silence(5 * s), 0},
		"quiet noise":              {sound(5*s, -50, noise(1)), 0},
		"noise":                    {sound(5*s, -38, noise(2)), 0},
		"loud noise":               {sound(5*s, -25, noise(3)), 0},
		"hum":                      {sound(5*s, -45, tone(50)), 0},
		"loud hum from the start":  {sound(20*s, -30, tone(100)), 0},
		"click":                    {slices.Concat(silence(s), sound(60*time.Millisecond, -10, noise(4)), silence(s)), 0},
		"clicks":                   {slices.Repeat(slices.Concat(silence(s), sound(60*time.Millisecond, -10, noise(4))), 5), 0},
		"speech":                   {slices.Concat(silence(s), speech(2*s, -20), silence(s)), 1},
		"quiet speech":             {slices.Concat(silence(s), speech(2*s, -34), silence(s)), 1},
		"loud speech at once":      {slices.Concat(speech(2*s, -6), silence(s)), 1},
		"speech with short pauses": {slices.Concat(silence(s), speech(s, -20), silence(500*time.Millisecond), speech(s, -20), silence(s)), 1},
		"two sentences":            {slices.Concat(silence(s), speech(s, -20), silence(s), speech(s, -20), silence(s)), 2},
		"speech over noise":        {slices.Concat(sound(s, -40, noise(5)), speech(2*s, -20), sound(s, -40, noise(5))), 1},
		"speech, then a hum":       {slices.Concat(silence(s), speech(s, -20), sound(10*s, -30, tone(100))), 1},
		"nothing":                  {nil, 0},
		"less than a frame":        {silence(s)[:100], 0},
	} {
		t.Run(name, func(t *testing.T) {
			if _, said := hear(t, 10*s, c.alaw); len(said) != c.want {
				t.Errorf("%d utterances, want %d", len(said), c.want)
			}
		})
	}
}

func TestListenerReportsStartAndEnd(t *testing.T) {
	times, said := hear(t, 10*s, slices.Concat(silence(s), sound(2*s, -20, tone(300)), silence(2*s)))
	if want := []time.Duration{s + startFrames*FrameDuration, 3*s + endFrames*FrameDuration}; !slices.Equal(times, want) {
		t.Fatalf("start and end at %v, want %v", times, want)
	}
	testkit.Equal(t, "the utterance has", said[0].Duration(), 2*s+2*margin*FrameDuration)
	testkit.Equal(t, "speech ended ago", said[0].Silence, endFrames*FrameDuration)
	if got := said[0].Level; math.Abs(got+20) > 0.5 {
		t.Errorf("level %.1f, want -20", got)
	}
}

// A muted microphone sends nothing.
func TestListenerEndsUtteranceWithoutAudio(t *testing.T) {
	times, said := hear(t, 10*s, slices.Concat(silence(s), speech(s, -20)))
	if len(said) != 1 || times[1] < 2*s || times[1] > 2*s+2*maxGap {
		t.Errorf("start and end at %v, want an end after %v without audio", times, maxGap)
	}
}

func TestListenerLimitsUtterance(t *testing.T) {
	_, said := hear(t, 3*s, slices.Concat(silence(s), speech(8*s, -20), silence(s), speech(s, -20), silence(s)))
	if len(said) != 2 || said[0].Duration() != 3*s || said[1].Duration() < s || said[1].Duration() > 2*s {
		t.Errorf("utterances %d, want one of 3s, which is the limit, and one of about 1s", len(said))
	}
}

func TestListenerJoinsChunksOfAnySize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan Utterance, 1)
		l := NewListener(10*s, func() {}, func(u Utterance) { ended <- u })
		go l.Run(t.Context())
		for chunk := range slices.Chunk(slices.Concat(silence(s), sound(s, -20, tone(300)), silence(s)), 77) {
			l.Hear(chunk)
			synctest.Wait()
		}
		if got := (<-ended).Duration(); got < s || got > s+2*margin*FrameDuration {
			t.Errorf("the utterance has %v, want about 1s", got)
		}
	})
}

func TestUtteranceAsWAV(t *testing.T) {
	u := Utterance{ALaw: sound(s, -20, tone(300))}
	wav, little := u.WAV(), binary.LittleEndian
	if len(wav) != 44+2*SampleRate || string(wav[:4]) != "RIFF" || little.Uint32(wav[4:]) != uint32(len(wav)-8) ||
		little.Uint32(wav[24:]) != SampleRate || little.Uint32(wav[40:]) != 2*SampleRate {
		t.Errorf("header % x with %d bytes, want a WAV file with one second of 16 bits", wav[:44], len(wav))
	}
	if got := audio.FromPCM(SampleRate, wav[44:]).ALaw(); !slices.Equal(got, u.ALaw) {
		t.Error("the samples differ from the A-law")
	}
}

// frameLog is a Leg that notes when its frames are sent. Each takes a while.
type frameLog struct {
	delay time.Duration
	times []time.Duration
	start time.Time
	alaw  []byte
	last  int
}

func (f *frameLog) WriteFrame(_ context.Context, sequence int, alaw []byte, last bool) error {
	if sequence == 0 {
		f.start = time.Now()
	}
	f.times, f.alaw = append(f.times, time.Since(f.start)), append(f.alaw, alaw...)
	if last {
		f.last = sequence
	}
	time.Sleep(f.delay)
	return nil
}

func TestPlayDoesNotDrift(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, alaw := &frameLog{delay: 7 * time.Millisecond}, sound(10*s, -20, tone(300))[:79_900]
		testkit.Must(t, Play(t.Context(), log, alaw))
		for n, at := range log.times {
			if at != time.Duration(n)*FrameDuration {
				t.Fatalf("frame %d is sent at %v, want %v", n, at, time.Duration(n)*FrameDuration)
			}
		}
		if !slices.Equal(log.alaw, alaw) || log.last != 499 {
			t.Errorf("%d bytes up to frame %d, want all %d bytes unchanged and frame 499", len(log.alaw), log.last, len(alaw))
		}
	})
}
