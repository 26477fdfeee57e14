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
	contrary int // consecutive frames that contradict speaking

	rest         []byte  // of a frame that is not complete
	recorded     []byte  // the utterance, or the last frames of a silence
	speechEnd    int     // bytes of recorded up to the last frame with speech
	speechFrames int     // number of frames with speech
	energySum    float64 // of these frames
	silentFrames int     // since the last frame with speech
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
		l.speechEnd = len(l.recorded)
		l.energySum += power
		l.speechFrames++
		l.silentFrames = 0
	} else {
		l.silentFrames++
	}
	if active == l.speaking {
		l.contrary = 0
		if !active {
			l.energySum, l.speechFrames = 0, 0
		}
		return
	}
	l.contrary++
	switch {
	case !l.speaking && l.contrary == startFrames:
		l.speaking, l.contrary = true, 0
		l.started()
	case l.speaking && l.contrary == endFrames:
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
		alaw:    l.recorded[:min(len(l.recorded), l.speechEnd+margin*frameBytes)],
		level:   decibels(l.energySum / float64(max(1, l.speechFrames))),
		silence: gap + time.Duration(l.silentFrames)*frameDuration,
	}
	l.speaking, l.contrary = false, 0
	l.recorded, l.speechEnd, l.energySum, l.speechFrames = nil, 0, 0, 0
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
