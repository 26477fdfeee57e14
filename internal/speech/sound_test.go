package speech

import (
	"bytes"
	"fmt"
	"math"
	"os/exec"
	"testing"

	"telapi/test/testkit"
)

// sox converts samples with the reference tool, without dithering.
func sox(t *testing.T, s Sound, encoding string, rate int) []byte {
	t.Helper()
	cmd := exec.Command(testkit.Sox(t), "-D", "-t", "raw", "-r", fmt.Sprint(s.Rate), "-e", "signed", "-b", "16", "-c", "1", "-",
		"-t", encoding, "-r", fmt.Sprint(rate), "-c", "1", "-", "rate", "-v")
	cmd.Stdin = bytes.NewReader(s.PCM())
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sox: %v", err)
	}
	return out
}

func TestALawMatchesSox(t *testing.T) {
	all := Sound{Rate: 8000}
	for v := math.MinInt16; v <= math.MaxInt16; v++ {
		all.Samples = append(all.Samples, int16(v))
	}
	got, want := all.ALaw(), sox(t, all, "al", 8000)
	for i, v := range all.Samples {
		if got[i] != want[i] {
			t.Fatalf("sample %d encoded as %#x, want %#x like sox", v, got[i], want[i])
		}
	}
}

// tones is a sum of sine waves with the same amplitude.
func tones(rate int, seconds, amplitude float64, notes ...float64) Sound {
	s := Sound{rate, make([]int16, int(float64(rate)*seconds))}
	for i := range s.Samples {
		sum := 0.0
		for _, hz := range notes {
			sum += amplitude * math.Sin(2*math.Pi*hz*float64(i)/float64(rate))
		}
		s.Samples[i] = int16(sum)
	}
	return s
}

// level returns the level of a frequency in dB of full scale.
func level(s Sound, hz float64) float64 {
	var re, im, weight float64
	for i, v := range s.Samples {
		w := 0.5 - 0.5*math.Cos(2*math.Pi*float64(i)/float64(len(s.Samples)))
		a := 2 * math.Pi * hz * float64(i) / float64(s.Rate)
		re, im, weight = re+w*float64(v)*math.Cos(a), im+w*float64(v)*math.Sin(a), weight+w
	}
	return 20 * math.Log10(2*math.Hypot(re, im)/weight/32768)
}

func TestResampleMatchesSox(t *testing.T) {
	for _, tt := range []struct{ from, to int }{{24000, 8000}, {22050, 8000}, {22050, 16000}, {24000, 16000}, {22050, 24000}, {8000, 24000}, {48000, 8000}} {
		t.Run(fmt.Sprintf("%d to %d", tt.from, tt.to), func(t *testing.T) {
			notes := []float64{200, 440, 1000, 2500, 3400}
			in := tones(tt.from, 1, 4000, notes...)
			got, want := in.Resample(tt.to), DecodePCM(tt.to, sox(t, in, "s16", tt.to))
			if d := len(got.Samples) - len(want.Samples); d < -1 || d > 1 {
				t.Fatalf("%d samples, want %d like sox", len(got.Samples), len(want.Samples))
			}
			for _, hz := range notes {
				if gotLevel, wantLevel := level(got, hz), level(want, hz); math.Abs(gotLevel-wantLevel) > 0.1 {
					t.Errorf("%v Hz at %.2f dB, want %.2f dB like sox", hz, gotLevel, wantLevel)
				}
			}
			// Compare samples to detect a delay or inversion. The ends ring differently.
			for i := tt.to / 4; i < tt.to*3/4; i++ {
				if d := int(got.Samples[i]) - int(want.Samples[i]); d < -40 || d > 40 {
					t.Fatalf("sample %d is %d, want %d like sox", i, got.Samples[i], want.Samples[i])
				}
			}
		})
	}
}

func TestResampleDoesNotAlias(t *testing.T) {
	for hz, mirror := range map[float64]float64{4500: 3500, 5000: 3000, 6000: 2000, 7000: 1000, 9000: 1000, 11000: 3000} {
		out := tones(24000, 1, 16000, hz).Resample(8000)
		if l := level(out, mirror); l > -80 {
			t.Errorf("%v Hz aliases to %v Hz with %.1f dB, want at most -80 dB", hz, mirror, l)
		}
	}
}

func TestResampleEdgeCases(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3} {
		in := Sound{24000, make([]int16, n)}
		if got := in.Resample(8000); got.Rate != 8000 || len(got.Samples) != (n+1)/3 {
			t.Errorf("%d samples became %d at %d Hz, want %d at 8000 Hz", n, len(got.Samples), got.Rate, (n+1)/3)
		}
	}
	loudest := Sound{8000, make([]int16, 800)}
	for i := range loudest.Samples {
		loudest.Samples[i] = math.MaxInt16
		if i/7%2 == 1 {
			loudest.Samples[i] = math.MinInt16
		}
	}
	for i, v := range loudest.Resample(24000).Samples { // overshoot must not wrap around
		if at := i / 3 % 14; at >= 2 && at <= 4 && v < 0 || at >= 9 && at <= 11 && v > 0 {
			t.Fatalf("sample %d wrapped around to %d", i, v)
		}
	}
	if s := DecodePCM(8000, []byte{1, 2, 3}); len(s.Samples) != 1 || s.Samples[0] != 0x0201 || !bytes.Equal(s.PCM(), []byte{1, 2}) {
		t.Errorf("three bytes decoded as %v, want one sample 0x0201", s)
	}
}
