// Package audio owns the arithmetic of sound: mono samples of 16 bits, their
// bytes, the A-law of telephones, and the change from one rate to another.
package audio

import (
	"encoding/binary"
	"math"

	"github.com/zaf/g711"
)

// Sound is mono audio.
type Sound struct {
	Rate    int // samples a second
	Samples []int16
}

// FromPCM reads signed samples of 16 bits, little endian. A last odd byte is left out.
func FromPCM(rate int, pcm []byte) Sound {
	s := Sound{rate, make([]int16, len(pcm)/2)}
	for i := range s.Samples {
		s.Samples[i] = int16(binary.LittleEndian.Uint16(pcm[2*i:])) //nolint:gosec // the bits of a signed number
	}
	return s
}

// PCM is the inverse of FromPCM.
func (s Sound) PCM() []byte {
	pcm := make([]byte, 2*len(s.Samples))
	for i, v := range s.Samples {
		binary.LittleEndian.PutUint16(pcm[2*i:], uint16(v)) //nolint:gosec // the bits of a signed number
	}
	return pcm
}

// ALaw encodes the samples by ITU-T G.711, which takes 13 bits: they are rounded
// to these, not cut.
func (s Sound) ALaw() []byte {
	alaw := make([]byte, len(s.Samples))
	for i, v := range s.Samples {
		alaw[i] = g711.EncodeAlawFrame(int16(min((int(v)+4)&^7, math.MaxInt16))) //nolint:gosec // within its bounds
	}
	return alaw
}

// The filter keeps 88 % of the band of the lower rate as it is and is 90 dB down
// where the band ends, so that nothing is heard of what lies beyond.
const (
	crossings = 48   // of zero, on each side of the filter's middle
	cutoff    = 0.94 // of half the lower rate
	beta      = 8.96 // of the Kaiser window
)

// Resample returns the sound at another rate, by a windowed-sinc filter. It is as long
// as the original, to the nearest sample, and not delayed.
func (s Sound) Resample(rate int) Sound {
	if rate == s.Rate || len(s.Samples) == 0 {
		return Sound{rate, s.Samples}
	}
	up, down := reduce(rate, s.Rate)
	band := cutoff * min(1, float64(up)/float64(down)) // of half the original's rate
	reach := int(math.Ceil(crossings * cutoff / band))
	filter := newFilter(up, reach, band)
	out := Sound{rate, make([]int16, (len(s.Samples)*up+down/2)/down)}
	for n := range out.Samples {
		at, phase := n*down/up, n*down%up
		first := max(0, at-reach+1)
		near := s.Samples[first:min(len(s.Samples), at+reach+1)]
		taps := filter[phase][first-at+reach-1:][:len(near)] // of one length: the loop checks no bounds
		sum := 0.0
		for i, v := range near {
			sum += taps[i] * float64(v)
		}
		out.Samples[n] = int16(math.Round(min(math.MaxInt16, max(math.MinInt16, sum))))
	}
	return out
}

// newFilter computes the taps for every phase in which an output sample can lie
// between two input samples: those of a phase add up to one.
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

// bessel is the modified one of the first kind and order zero.
func bessel(x float64) float64 {
	sum, term := 1.0, 1.0
	for k := 1.0; term > sum*1e-12; k++ {
		term *= x / (2 * k) * x / (2 * k)
		sum += term
	}
	return sum
}

func reduce(a, b int) (int, int) {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x, b / x
}
