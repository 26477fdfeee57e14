package voice

import (
	"context"
	"time"

	"telapi/internal/audio"
)

const (
	maxGap     = time.Second // without audio, for example because the microphone was muted, speech has ended
	margin     = 5           // frames that are kept before and after speech, so that soft sounds are not cut off
	maxPending = 256         // chunks of audio that wait for Run; more are dropped
	preRoll    = (startFrames + margin) * FrameBytes
)

// Utterance is the caller's speech between two silences.
type Utterance struct {
	ALaw    []byte
	Level   float64       // of the frames with speech, dBFS
	Silence time.Duration // since the end of speech, when the utterance is reported
}

// Duration returns the length of the utterance.
func (u Utterance) Duration() time.Duration { return Duration(u.ALaw) }

// WAV returns the utterance as a WAV file with 16-bit samples.
func (u Utterance) WAV() []byte { return audio.FromALaw(SampleRate, u.ALaw).WAV() }

// Listener detects and records the caller's utterances. Run calls Started and Ended.
type Listener struct {
	Max     time.Duration // of an utterance; what follows is not recorded
	Started func()
	Ended   func(Utterance)

	pending  chan []byte
	detector detector
	rest     []byte // of a frame that is not complete
	recorded []byte // the utterance, or the last frames of a silence
	speech   int    // bytes of recorded up to the last frame with speech
	energy   float64
	active   int // frames with speech, whose energy is the sum in energy
	silent   int // frames since the last one with speech
}

// NewListener returns a listener for utterances up to a length.
func NewListener(maxLength time.Duration, started func(), ended func(Utterance)) *Listener {
	return &Listener{Max: maxLength, Started: started, Ended: ended, pending: make(chan []byte, maxPending)}
}

// Hear passes A-law audio of the caller to Run. It does not wait.
func (l *Listener) Hear(alaw []byte) {
	select {
	case l.pending <- alaw:
	default:
	}
}

// Run handles audio until ctx ends.
func (l *Listener) Run(ctx context.Context) {
	for {
		var gap <-chan time.Time
		if l.detector.speaking {
			gap = time.After(maxGap)
		}
		select {
		case alaw := <-l.pending:
			l.rest = append(l.rest, alaw...)
			for len(l.rest) >= FrameBytes {
				l.add(l.rest[:FrameBytes])
				l.rest = l.rest[FrameBytes:]
			}
		case <-gap:
			l.detector = detector{noise: l.detector.noise}
			l.end(maxGap)
		case <-ctx.Done():
			return
		}
	}
}

// add handles one frame.
func (l *Listener) add(frame []byte) {
	speaking, power := l.detector.speaking, energy(frame)
	active := l.detector.next(decibels(power))
	if !speaking {
		l.recorded = l.recorded[max(0, len(l.recorded)+FrameBytes-preRoll):]
	}
	if len(l.recorded) < int(l.Max/FrameDuration)*FrameBytes {
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
		l.Started()
	case speaking && !l.detector.speaking:
		l.end(0)
	case !speaking && !active:
		l.energy, l.active = 0, 0
	}
}

// end reports the recorded utterance, after a gap without audio, and starts with an
// empty record.
func (l *Listener) end(gap time.Duration) {
	silence := gap + time.Duration(l.silent)*FrameDuration
	u := Utterance{l.recorded[:min(len(l.recorded), l.speech+margin*FrameBytes)], decibels(l.energy / float64(max(1, l.active))), silence}
	l.recorded, l.speech, l.energy, l.active = nil, 0, 0, 0
	l.Ended(u)
}
