package demo

import (
	"math"

	"github.com/zaf/g711"
)

// The detector compares the level of each frame with two thresholds. Levels are RMS
// values in dBFS: a sine of full scale has -3.
const (
	minSpeechLevel = -40.0 // a quiet voice at a headset has about -35, a quiet room less than -50
	aboveNoise     = 12.0  // dB: steady noise varies by less
	hysteresis     = 4.0   // dB: speech goes on at this much below the level at which it starts
	startFrames    = 5     // 100 ms: a click or a key stroke is shorter, a syllable is longer
	endFrames      = 35    // 700 ms: a pause between words is shorter

	// The noise is the lowest recent level. It follows a lower level at once. It rises by
	// 6 dB per second, so that a steady hum becomes noise within seconds, but not
	// a long vowel.
	noiseRise = 0.12 // dB per frame
	minNoise  = -60.0
	// maxFirstNoise limits the noise that the first frame sets, in case the caller
	// is already speaking.
	maxFirstNoise = -35.0
	silenceLevel  = -90.0 // of digital silence, whose logarithm is not finite
)

type detector struct {
	noise    float64 // dBFS; 0 before the first frame
	speaking bool
	frames   int // consecutive frames that contradict speaking
}

// next handles the level of a frame. active reports whether the frame itself is
// loud enough for speech.
func (d *detector) next(level float64) (active bool) {
	if d.noise == 0 {
		d.noise = min(level, maxFirstNoise)
	}
	d.noise = max(minNoise, min(level, d.noise+noiseRise))
	threshold := max(minSpeechLevel, d.noise+aboveNoise)
	if d.speaking {
		threshold -= hysteresis
	}
	active = level >= threshold
	if active == d.speaking {
		d.frames = 0
		return active
	}
	d.frames++
	if !d.speaking && d.frames >= startFrames || d.speaking && d.frames >= endFrames {
		d.speaking, d.frames = !d.speaking, 0
	}
	return active
}

// energy returns the mean square of A-law samples, relative to full scale.
func energy(alaw []byte) float64 {
	sum := 0.0
	for _, b := range alaw {
		v := float64(g711.DecodeAlawFrame(b)) / (math.MaxInt16 + 1)
		sum += v * v
	}
	return sum / float64(max(1, len(alaw)))
}

// decibels converts an energy to dBFS.
func decibels(energy float64) float64 { return max(silenceLevel, 10*math.Log10(energy)) }
