// Package synth implements speech providers: services with the OpenAI speech API,
// the program espeak-ng, and a built-in one that plays tones. They fail fast, so
// that the next provider can be tried.
package synth

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
	"unicode"
	"unicode/utf8"

	"telapi/internal/speech"
)

const (
	maxSeconds = 300            // at 24 kHz this fits into the largest blob of the media service
	minBytes   = 2 * 24000 / 50 // 20 ms at 24 kHz; shorter audio is an error
	maxBytes   = 2 * 24000 * maxSeconds
)

// sampleRates are the supported rates. Others would need very long filters to
// resample.
var sampleRates = []int{8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000}

var (
	errStalled = errors.New("no data before the timeout")
	errTooLong = fmt.Errorf("more than %d s of audio", maxSeconds)
)

// watchdog cancels a context with errStalled when no data has arrived for a
// while.
type watchdog struct {
	limit time.Duration
	timer *time.Timer
}

func newWatchdog(ctx context.Context, limit time.Duration) (context.Context, *watchdog, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(errStalled) })
	return ctx, &watchdog{limit, timer}, func() {
		timer.Stop()
		cancel(nil)
	}
}

// readAll reads a stream of audio.
func (w *watchdog) readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	all, err := io.ReadAll(io.LimitReader(io.TeeReader(r, w), maxBytes+1))
	switch {
	case context.Cause(ctx) != nil: // also after EOF: the output of a killed program ends normally
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("read audio: %w", err)
	case len(all) > maxBytes:
		return nil, errTooLong
	}
	return all, nil
}

// Write is called with data that has arrived.
func (w *watchdog) Write(p []byte) (int, error) {
	w.timer.Reset(w.limit)
	return len(p), nil
}

// decode decodes WAV, or PCM with the given sample rate. It rejects other data.
func decode(body []byte, rate int) (speech.Sound, error) {
	if bytes.HasPrefix(body, []byte("RIFF")) {
		var err error
		if body, rate, err = parseWAV(body); err != nil {
			return speech.Sound{}, err
		}
	}
	switch {
	case len(body) < minBytes || len(body)%2 != 0:
		return speech.Sound{}, fmt.Errorf("invalid audio: %d bytes", len(body))
	case utf8.Valid(body) && bytes.IndexByte(body, 0) < 0:
		return speech.Sound{}, errors.New("received text instead of audio")
	}
	return speech.DecodePCM(rate, body), nil
}

// parseWAV returns the samples of a 16-bit mono file. Programs that don't know the
// length in advance write one that is too large. The samples then extend to the end.
func parseWAV(file []byte) (samples []byte, rate int, err error) {
	rest, little := file[min(len(file), 12):], binary.LittleEndian
	for len(rest) >= 8 {
		id, size := string(rest[:4]), int64(little.Uint32(rest[4:]))
		body := rest[8:min(int64(len(rest)), 8+size)]
		switch {
		case id == "fmt " && len(body) >= 16:
			format, channels, bits := little.Uint16(body), little.Uint16(body[2:]), little.Uint16(body[14:])
			if rate = int(little.Uint32(body[4:])); format != 1 || channels != 1 || bits != 16 || !slices.Contains(sampleRates, rate) {
				return nil, 0, fmt.Errorf("unsupported WAV: format %d, %d channels, %d bits, %d Hz", format, channels, bits, rate)
			}
		case id == "data" && rate != 0:
			return body[:len(body)&^1], rate, nil
		}
		rest = rest[min(int64(len(rest)), 8+size+size%2):]
	}
	return nil, 0, errors.New("invalid WAV: no samples")
}

// Tone plays a melody with a note for each letter, always the same for the same
// text. It is for tests and demos.
type Tone struct{}

var _ speech.Provider = Tone{}

const (
	toneRate       = 16000
	toneSeconds    = 0.04 // per letter at speed 1
	maxToneSeconds = 60   // a long text is played faster
)

// pentatonic lists the semitones of a scale.
var pentatonic = []int{0, 2, 4, 7, 9, 12, 14, 16, 19, 21}

// Name implements speech.Provider.
func (Tone) Name() string { return "tone" }

// Resolve implements speech.Provider. Any voice is valid; it sets the pitch.
func (Tone) Resolve(voice, model string) (string, string) {
	return cmp.Or(voice, "flute"), cmp.Or(model, "pentatonic")
}

// Synthesize implements speech.Provider.
func (Tone) Synthesize(_ context.Context, u speech.Utterance) (speech.Sound, error) {
	base := 0
	for _, c := range u.Voice {
		base += int(c)
	}
	length := int(toneRate * min(toneSeconds/u.Speed, maxToneSeconds/float64(max(1, u.Characters()))))
	notes := make([][]int16, len(pentatonic)) // those of the text; a long text repeats them
	sound := speech.Sound{Rate: toneRate}
	for _, c := range u.Text {
		if unicode.IsSpace(c) {
			sound.Samples = append(sound.Samples, make([]int16, length)...)
			continue
		}
		n := int(c) % len(pentatonic)
		if notes[n] == nil {
			notes[n] = note(220*math.Pow(2, float64(base%12+pentatonic[n])/12), length)
		}
		sound.Samples = append(sound.Samples, notes[n]...)
	}
	return sound, nil
}

// note returns the samples of one note, which swells and fades.
func note(hz float64, length int) []int16 {
	samples := make([]int16, length)
	for i := range samples {
		swell := math.Sin(math.Pi * float64(i) / float64(length))
		samples[i] = int16(9000 * swell * math.Sin(2*math.Pi*hz*float64(i)/toneRate))
	}
	return samples
}
