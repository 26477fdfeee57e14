package media

import (
	"encoding/binary"
	"math"

	"github.com/zaf/g711"
)

const (
	minSpeech   = -40.0           // dBFS
	aboveNoise  = 12.0            // dB
	noiseRise   = 0.12            // dB per frame: a steady hum becomes noise within seconds
	minNoise    = -60.0           // dBFS
	startFrames = 5               // 100 ms: a click is shorter
	endFrames   = 35              // 700 ms: a pause between words is shorter
	margin      = 5               // frames that are kept before and after speech
	maxBytes    = 30 * SampleRate // of an utterance; what follows is not recorded
)

// Listener detects speech by its energy and records it. It is not safe for concurrent use.
type Listener struct {
	noise    float64
	speaking bool
	frames   int // consecutive ones that contradict speaking
	recorded []byte
	speech   int // bytes of recorded up to the last loud frame
}

// Hear takes one frame of A-law. It reports the start of speech, and returns what was said
// when there is silence again.
func (l *Listener) Hear(frame []byte) (started bool, said []byte) {
	heard := level(frame)
	l.noise = max(minNoise, min(heard, l.noise+noiseRise))
	loud := heard >= max(minSpeech, l.noise+aboveNoise)
	if !l.speaking {
		l.recorded = l.recorded[max(0, len(l.recorded)-(startFrames+margin-1)*FrameBytes):]
	}
	if len(l.recorded) < maxBytes {
		l.recorded = append(l.recorded, frame...)
	}
	if loud {
		l.speech = len(l.recorded)
	}
	if loud == l.speaking {
		l.frames = 0
		return false, nil
	}
	l.frames++
	switch {
	case !l.speaking && l.frames == startFrames:
		l.speaking, l.frames = true, 0
		return true, nil
	case l.speaking && l.frames == endFrames:
		said = l.recorded[:min(len(l.recorded), l.speech+margin*FrameBytes)]
		l.Reset()
	}
	return false, said
}

// Reset drops what was recorded.
func (l *Listener) Reset() { *l = Listener{noise: l.noise} }

// level returns the level of A-law audio in dBFS. A sine of full scale has -3.
func level(alaw []byte) float64 {
	sum := 1e-9
	for _, b := range alaw {
		v := float64(g711.DecodeAlawFrame(b)) / (math.MaxInt16 + 1)
		sum += v * v
	}
	return 10 * math.Log10(sum/float64(len(alaw)))
}

// WAV returns A-law audio as a file with 16-bit samples.
func WAV(alaw []byte) []byte {
	const format = "\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00" // PCM, mono, 8 kHz, 16 bits
	size := uint32(2 * len(alaw))
	wav := binary.LittleEndian.AppendUint32([]byte("RIFF"), 36+size)
	wav = append(wav, "WAVEfmt \x10\x00\x00\x00"+format+"data"...)
	return append(binary.LittleEndian.AppendUint32(wav, size), g711.DecodeAlaw(alaw)...)
}
