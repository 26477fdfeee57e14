package demo

import (
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/zaf/g711"

	"telapi/internal/speech"
)

// A listener compares the level of each frame with two thresholds. Levels are RMS
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

const (
	maxGap  = time.Second // without audio, until speech has ended
	margin  = 5           // frames that are kept before and after speech, so that soft sounds are not cut off
	preRoll = (startFrames + margin) * frameBytes
)

// utterance is the caller's speech between two silences.
type utterance struct {
	id      string
	alaw    []byte
	level   float64       // of the frames with speech, dBFS
	silence time.Duration // since the end of speech, when the utterance is reported
}

func (u utterance) duration() time.Duration { return soundLength(u.alaw) }

func (u utterance) wav() []byte { return speech.DecodeALaw(sampleRate, u.alaw).WAV() }

// listener detects and records the caller's utterances.
type listener struct {
	maxLength time.Duration // of an utterance; what follows is not recorded
	started   func()
	ended     func(utterance)

	noise    float64 // dBFS; 0 before the first frame
	speaking bool
	frames   int // consecutive frames that contradict speaking

	rest     []byte  // of a frame that is not complete
	recorded []byte  // the utterance, or the last frames of a silence
	speech   int     // bytes of recorded up to the last frame with speech
	active   int     // frames with speech
	energy   float64 // sum of their energies
	silent   int     // frames since the last one with speech
}

// hear handles A-law audio of the caller. If no audio follows for maxGap, for example
// because the microphone was muted, a timer ends the utterance.
func (c *call) hear(alaw []byte) {
	l := &c.listener
	l.rest = append(l.rest, alaw...)
	for len(l.rest) >= frameBytes {
		l.add(l.rest[:frameBytes])
		l.rest = l.rest[frameBytes:]
	}
	delete(c.timers, audioGap)
	if l.speaking {
		c.after(audioGap, maxGap, func() { l.end(maxGap) })
	}
}

func (l *listener) add(frame []byte) {
	power := energy(frame)
	active := l.isSpeech(decibels(power))
	if !l.speaking {
		l.recorded = l.recorded[max(0, len(l.recorded)+frameBytes-preRoll):]
	}
	if len(l.recorded) < int(l.maxLength/frameDuration)*frameBytes {
		l.recorded = append(l.recorded, frame...)
	}
	if active {
		l.speech = len(l.recorded)
		l.energy += power
		l.active++
		l.silent = 0
	} else {
		l.silent++
	}
	if active == l.speaking {
		l.frames = 0
		if !active {
			l.energy, l.active = 0, 0
		}
		return
	}
	l.frames++
	switch {
	case !l.speaking && l.frames == startFrames:
		l.speaking, l.frames = true, 0
		l.started()
	case l.speaking && l.frames == endFrames:
		l.end(0)
	}
}

// isSpeech reports whether a frame is loud enough for speech.
func (l *listener) isSpeech(level float64) bool {
	if l.noise == 0 {
		l.noise = min(level, maxFirstNoise)
	}
	l.noise = max(minNoise, min(level, l.noise+noiseRise))
	threshold := max(minSpeechLevel, l.noise+aboveNoise)
	if l.speaking {
		threshold -= hysteresis
	}
	return level >= threshold
}

// end reports the recorded utterance, after a gap without audio.
func (l *listener) end(gap time.Duration) {
	u := utterance{
		id:      uuid.NewString(),
		alaw:    l.recorded[:min(len(l.recorded), l.speech+margin*frameBytes)],
		level:   decibels(l.energy / float64(max(1, l.active))),
		silence: gap + time.Duration(l.silent)*frameDuration,
	}
	l.speaking, l.frames = false, 0
	l.recorded, l.speech, l.energy, l.active = nil, 0, 0, 0
	l.ended(u)
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
