package demo

import (
	"time"

	"github.com/google/uuid"

	"telapi/internal/speech"
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

	detector detector
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
	if l.detector.speaking {
		c.after(audioGap, maxGap, func() {
			l.detector = detector{noise: l.detector.noise}
			l.end(maxGap)
		})
	}
}

func (l *listener) add(frame []byte) {
	speaking, power := l.detector.speaking, energy(frame)
	active := l.detector.next(decibels(power))
	if !speaking {
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
	switch {
	case !speaking && l.detector.speaking:
		l.started()
	case speaking && !l.detector.speaking:
		l.end(0)
	case !speaking && !active:
		l.energy, l.active = 0, 0
	}
}

// end reports the recorded utterance, after a gap without audio.
func (l *listener) end(gap time.Duration) {
	u := utterance{
		id:      uuid.NewString(),
		alaw:    l.recorded[:min(len(l.recorded), l.speech+margin*frameBytes)],
		level:   decibels(l.energy / float64(max(1, l.active))),
		silence: gap + time.Duration(l.silent)*frameDuration,
	}
	l.recorded, l.speech, l.energy, l.active = nil, 0, 0, 0
	l.ended(u)
}
