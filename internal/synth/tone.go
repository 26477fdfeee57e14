package synth

import (
	"cmp"
	"context"
	"math"
	"unicode"

	"telapi/internal/audio"
	"telapi/internal/speech"
)

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
func (Tone) Synthesize(_ context.Context, u speech.Utterance) (audio.Sound, error) {
	base := 0
	for _, c := range u.Voice {
		base += int(c)
	}
	length := int(toneRate * min(toneSeconds/u.Speed, maxToneSeconds/float64(max(1, u.Characters()))))
	sound := audio.Sound{Rate: toneRate}
	for _, c := range u.Text {
		if unicode.IsSpace(c) {
			sound.Samples = append(sound.Samples, make([]int16, length)...)
			continue
		}
		hz := 220 * math.Pow(2, float64(base%12+pentatonic[int(c)%len(pentatonic)])/12)
		for i := range length {
			swell := math.Sin(math.Pi * float64(i) / float64(length))
			sound.Samples = append(sound.Samples, int16(9000*swell*math.Sin(2*math.Pi*hz*float64(i)/toneRate)))
		}
	}
	return sound, nil
}
