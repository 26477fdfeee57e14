package speech

import (
	"encoding/binary"
	"math"
	"math/big"

	"github.com/zaf/g711"
)

// Sound is 16-bit mono audio.
type Sound struct {
	Rate    int // samples per second
	Samples []int16
}

// DecodePCM decodes signed 16-bit little-endian samples. It ignores a last odd byte.
func DecodePCM(rate int, pcm []byte) Sound {
	s := Sound{rate, make([]int16, len(pcm)/2)}
	_, _ = binary.Decode(pcm, binary.LittleEndian, s.Samples) // the lengths fit
	return s
}

// PCM is the inverse of DecodePCM.
func (s Sound) PCM() []byte {
	pcm, _ := binary.Append(nil, binary.LittleEndian, s.Samples) // int16 can always be encoded
	return pcm
}

// ALaw encodes the samples as ITU-T G.711 A-law. It rounds them to 13 bits, the nearest
// multiple of 8.
func (s Sound) ALaw() []byte {
	alaw := make([]byte, len(s.Samples))
	for i, v := range s.Samples {
		alaw[i] = g711.EncodeAlawFrame(int16(min((int(v)+4)&^7, math.MaxInt16))) //nolint:gosec // within its bounds
	}
	return alaw
}

// DecodeALaw decodes ITU-T G.711 A-law.
func DecodeALaw(rate int, alaw []byte) Sound {
	s := Sound{rate, make([]int16, len(alaw))}
	for i, v := range alaw {
		s.Samples[i] = g711.DecodeAlawFrame(v)
	}
	return s
}

// WAV returns the sound as a WAV file.
func (s Sound) WAV() []byte {
	const format, channels, sampleBytes = 1, 1, 2
	const formatBytes = 16 // of the part "fmt "
	const headerBytes = 36 // between the length of the file and the samples
	little := binary.LittleEndian
	size, rate := uint32(sampleBytes*len(s.Samples)), uint32(s.Rate) //nolint:gosec // a sound in memory is shorter than 4 GiB
	file := little.AppendUint32([]byte("RIFF"), headerBytes+size)
	file = little.AppendUint32(append(file, "WAVEfmt "...), formatBytes)
	file = little.AppendUint16(little.AppendUint16(file, format), channels)
	file = little.AppendUint32(little.AppendUint32(file, rate), rate*sampleBytes)
	file = little.AppendUint16(little.AppendUint16(file, sampleBytes), 8*sampleBytes)
	file = little.AppendUint32(append(file, "data"...), size)
	return append(file, s.PCM()...)
}

// The low-pass filter passes 88 % of the band of the lower rate and attenuates by
// 90 dB at its end, which prevents audible aliasing.
const (
	crossings = 48   // zero crossings on each side of the center
	cutoff    = 0.94 // of half the lower rate
	beta      = 8.96 // of the Kaiser window
)

// Resample converts the sound to another rate with a windowed-sinc filter. The
// result has the same duration, to the nearest sample, and is not delayed.
func (s Sound) Resample(rate int) Sound {
	if rate == s.Rate || len(s.Samples) == 0 {
		return Sound{rate, s.Samples}
	}
	ratio := big.NewRat(int64(rate), int64(s.Rate)) // in lowest terms
	up, down := int(ratio.Num().Int64()), int(ratio.Denom().Int64())
	band := cutoff * min(1, float64(up)/float64(down)) // relative to half the original rate
	reach := int(math.Ceil(crossings * cutoff / band)) // input samples on each side of an output sample
	filter := newFilter(up, reach, band)
	out := Sound{rate, make([]int16, (len(s.Samples)*up+down/2)/down)}
	for n := range out.Samples {
		at, phase := n*down/up, n*down%up // position in the input: at + phase/up
		first := max(0, at-reach+1)
		window := s.Samples[first:min(len(s.Samples), at+reach+1)]
		taps := filter[phase][first-at+reach-1:][:len(window)] // equal lengths avoid bounds checks
		sum := 0.0
		for i, v := range window {
			sum += taps[i] * float64(v)
		}
		out.Samples[n] = int16(math.Round(min(math.MaxInt16, max(math.MinInt16, sum))))
	}
	return out
}

// newFilter computes the taps for each phase, which is the position of an output
// sample between two input samples. The taps of a phase add up to one.
func newFilter(phases, reach int, band float64) [][]float64 {
	filter := make([][]float64, phases)
	for phase := range filter {
		taps, sum := make([]float64, 2*reach), 0.0
		for i := range taps {
			x := float64(i-reach+1) - float64(phase)/float64(phases)
			taps[i] = sinc(x*band) * kaiser(x/float64(reach))
			sum += taps[i]
		}
		for i := range taps {
			taps[i] /= sum
		}
		filter[phase] = taps
	}
	return filter
}

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	return math.Sin(math.Pi*x) / (math.Pi * x)
}

func kaiser(x float64) float64 { return bessel(beta*math.Sqrt(max(0, 1-x*x))) / bessel(beta) }

// bessel is the modified Bessel function of the first kind and order zero.
func bessel(x float64) float64 {
	sum, term := 1.0, 1.0
	for k := 1.0; term > sum*1e-12; k++ {
		term *= x / (2 * k) * x / (2 * k)
		sum += term
	}
	return sum
}
