package demo

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/speech"
	"telapi/test/testkit"
)

// sound returns A-law with an RMS level in dBFS. wave returns values with an RMS of 1.
func sound(length time.Duration, level float64, wave func(seconds float64) float64) []byte {
	s := speech.Sound{Rate: sampleRate, Samples: make([]int16, length.Milliseconds()*sampleRate/1000)}
	amplitude := math.Pow(10, level/20) * math.MaxInt16
	for i := range s.Samples {
		s.Samples[i] = int16(max(math.MinInt16, min(math.MaxInt16, amplitude*wave(float64(i)/sampleRate))))
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

func quiet(length time.Duration) []byte { return sound(length, -90, tone(100)) }

// syllables returns syllables of 180 ms with gaps of 80 ms.
func syllables(length time.Duration, level float64) (alaw []byte) {
	for len(alaw) < int(length.Milliseconds())*sampleRate/1000 {
		alaw = slices.Concat(alaw, sound(180*time.Millisecond, level, tone(220)), sound(80*time.Millisecond, -60, noise(1)))
	}
	return alaw
}

// ear collects what a call hears.
type ear struct {
	effects
	now   time.Duration
	times []time.Duration // at which the caller starts and stops speaking
	said  []utterance
}

func (e *ear) publishSpeaking() { e.times = append(e.times, e.now) }

func (e *ear) publishUtterance(u utterance) {
	e.times, e.said = append(e.times, e.now), append(e.said, u)
}

func (e *ear) publish(EventKind, string) {}

// hear lets a call hear audio in chunks, in real time, and waits for the end of speech.
func hear(limit time.Duration, alaw []byte, chunk int) *ear {
	e := &ear{}
	c := newCall("audio", e, func() time.Time { return time.Time{}.Add(e.now) })
	c.ended = true // so that it does not answer
	c.listener.maxLength = limit
	for part := range slices.Chunk(alaw, chunk) {
		e.now += time.Duration(chunk) * time.Second / sampleRate
		c.hear(part)
	}
	for range maxGap / frameDuration {
		e.now += frameDuration
		c.fireTimers()
	}
	return e
}

func TestListenerTellsSpeechFromNoise(t *testing.T) {
	for name, c := range map[string]struct {
		alaw []byte
		want int // utterances
	}{
		"silence":                  {quiet(5 * s), 0},
		"quiet noise":              {sound(5*s, -50, noise(1)), 0},
		"noise":                    {sound(5*s, -38, noise(2)), 0},
		"loud noise":               {sound(5*s, -25, noise(3)), 0},
		"hum":                      {sound(5*s, -45, tone(50)), 0},
		"loud hum from the start":  {sound(20*s, -30, tone(100)), 0},
		"click":                    {slices.Concat(quiet(s), sound(60*time.Millisecond, -10, noise(4)), quiet(s)), 0},
		"clicks":                   {slices.Repeat(slices.Concat(quiet(s), sound(60*time.Millisecond, -10, noise(4))), 5), 0},
		"speech":                   {slices.Concat(quiet(s), syllables(2*s, -20), quiet(s)), 1},
		"quiet speech":             {slices.Concat(quiet(s), syllables(2*s, -34), quiet(s)), 1},
		"loud speech at once":      {slices.Concat(syllables(2*s, -6), quiet(s)), 1},
		"speech with short pauses": {slices.Concat(quiet(s), syllables(s, -20), quiet(500*time.Millisecond), syllables(s, -20), quiet(s)), 1},
		"two sentences":            {slices.Concat(quiet(s), syllables(s, -20), quiet(s), syllables(s, -20), quiet(s)), 2},
		"speech over noise":        {slices.Concat(sound(s, -40, noise(5)), syllables(2*s, -20), sound(s, -40, noise(5))), 1},
		"speech, then a hum":       {slices.Concat(quiet(s), syllables(s, -20), sound(10*s, -30, tone(100))), 1},
		"nothing":                  {nil, 0},
		"less than a frame":        {quiet(s)[:100], 0},
	} {
		t.Run(name, func(t *testing.T) {
			if said := hear(10*s, c.alaw, frameBytes).said; len(said) != c.want {
				t.Errorf("%d utterances, want %d", len(said), c.want)
			}
		})
	}
}

func TestListenerReportsStartAndEnd(t *testing.T) {
	heard := hear(10*s, slices.Concat(quiet(s), sound(2*s, -20, tone(300)), quiet(2*s)), frameBytes)
	if want := []time.Duration{s + startFrames*frameDuration, 3*s + endFrames*frameDuration}; !slices.Equal(heard.times, want) {
		t.Fatalf("start and end at %v, want %v", heard.times, want)
	}
	said := heard.said
	testkit.Equal(t, "the utterance has", said[0].duration(), 2*s+2*margin*frameDuration)
	testkit.Equal(t, "speech ended ago", said[0].silence, endFrames*frameDuration)
	if got := said[0].level; math.Abs(got+20) > 0.5 {
		t.Errorf("level %.1f, want -20", got)
	}
}

// A muted microphone sends nothing.
func TestListenerEndsUtteranceWithoutAudio(t *testing.T) {
	heard := hear(10*s, slices.Concat(quiet(s), syllables(s, -20)), frameBytes)
	if len(heard.said) != 1 || heard.times[1] != heard.now {
		t.Errorf("start and end at %v, want an end at %v, after %v without audio", heard.times, heard.now, maxGap)
	}
}

func TestListenerLimitsUtterance(t *testing.T) {
	said := hear(3*s, slices.Concat(quiet(s), syllables(8*s, -20), quiet(s), syllables(s, -20), quiet(s)), frameBytes).said
	if len(said) != 2 || said[0].duration() != 3*s || said[1].duration() < s || said[1].duration() > 2*s {
		t.Errorf("utterances %d, want one of 3s, which is the limit, and one of about 1s", len(said))
	}
}

func TestListenerJoinsChunksOfAnySize(t *testing.T) {
	said := hear(10*s, slices.Concat(quiet(s), sound(s, -20, tone(300)), quiet(s)), 77).said
	if len(said) != 1 || said[0].duration() < s || said[0].duration() > s+2*margin*frameDuration {
		t.Errorf("%d utterances, want one of about 1s", len(said))
	}
}

func TestUtteranceAsWAV(t *testing.T) {
	u := utterance{alaw: sound(s, -20, tone(300))}
	wav, little := u.wav(), binary.LittleEndian
	if len(wav) != 44+2*sampleRate || string(wav[:4]) != "RIFF" || little.Uint32(wav[4:]) != uint32(len(wav)-8) ||
		little.Uint32(wav[24:]) != sampleRate || little.Uint32(wav[40:]) != 2*sampleRate {
		t.Errorf("header % x with %d bytes, want a WAV file with one second of 16 bits", wav[:44], len(wav))
	}
	if got := speech.DecodePCM(sampleRate, wav[44:]).ALaw(); !slices.Equal(got, u.alaw) {
		t.Error("the samples differ from the A-law")
	}
}

// frameLog is a leg that notes when its frames are sent. Each takes a while.
type frameLog struct {
	delay time.Duration
	times []time.Duration
	start time.Time
	alaw  []byte
	last  int
}

func (f *frameLog) writeFrame(_ context.Context, sequence int, alaw []byte, last bool) error {
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
		testkit.Must(t, play(t.Context(), log, alaw))
		for n, at := range log.times {
			if at != time.Duration(n)*frameDuration {
				t.Fatalf("frame %d is sent at %v, want %v", n, at, time.Duration(n)*frameDuration)
			}
		}
		if !slices.Equal(log.alaw, alaw) || log.last != 499 {
			t.Errorf("%d bytes up to frame %d, want all %d bytes unchanged and frame 499", len(log.alaw), log.last, len(alaw))
		}
	})
}
