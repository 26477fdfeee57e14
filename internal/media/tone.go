package media

import (
	"cmp"
	"context"
	"math"
	"unicode"

	"telapi/internal/speech"
)

// Tone plays a melody with a note for each letter, always the same for the same
// text. It is for tests and demos.
type Tone struct{}

var _ speech.Provider = Tone{}

const (
	toneRate           = 16000
	toneSeconds        = 0.04      // per letter at speed 1
	maxToneSeconds     = 60        // a long text is played faster
	lowestHz, loudness = 220, 9000 // of 32767
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
			notes[n] = note(lowestHz*math.Pow(2, float64(base%12+pentatonic[n])/12), length)
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
		samples[i] = int16(loudness * swell * math.Sin(2*math.Pi*hz*float64(i)/toneRate))
	}
	return samples
}
