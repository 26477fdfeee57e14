package phone

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"telapi/test/testkit"
)

// wav returns a file with 16-bit samples at 8 kHz.
func wav(samples []int16) []byte {
	little := binary.LittleEndian
	file := little.AppendUint32([]byte("RIFF"), uint32(36+2*len(samples)))
	file = append(file, "WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x80\x3e\x00\x00\x02\x00\x10\x00data"...)
	file = little.AppendUint32(file, uint32(2*len(samples)))
	for _, s := range samples {
		file = little.AppendUint16(file, uint16(s))
	}
	return file
}

// loudness returns how much of the audio is not silent, and the level of that in dBFS.
func loudness(samples []int16) (length time.Duration, level float64) {
	frames, sum := 0, 0.0
	for i := 0; i+160 <= len(samples); i += 160 {
		energy := 0.0
		for _, s := range samples[i : i+160] {
			energy += float64(s) * float64(s) / (1 << 30) / 160
		}
		if energy > 1e-5 { // -50 dBFS
			frames, sum = frames+1, sum+energy
		}
	}
	return time.Duration(frames) * 20 * time.Millisecond, 10 * math.Log10(sum/float64(max(1, frames)))
}

// decode returns the samples of A-law, as sox decodes them.
func decode(t *testing.T, alaw []byte) []int16 {
	t.Helper()
	cmd := exec.Command(testkit.Sox(t), "-t", "al", "-r", "8000", "-c", "1", "-", "-t", "raw", "-e", "signed", "-b", "16", "-L", "-")
	cmd.Stdin = strings.NewReader(string(alaw))
	out, err := cmd.Output()
	testkit.Must(t, err)
	return samplesOf(out)
}

func samplesOf(raw []byte) (samples []int16) {
	for i := 0; i+1 < len(raw); i += 2 {
		samples = append(samples, int16(binary.LittleEndian.Uint16(raw[i:])))
	}
	return samples
}

// A caller with baresip hears the greeting, speaks, and hears what the parrot repeats.
func TestBaresipTalksToTheParrot(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("baresip")
	if err != nil {
		t.Fatal("baresip is missing: install the package baresip")
	}
	l, dir := newLine(t, nil), t.TempDir()
	spoken := make([]int16, 8000*120)
	for i := 4 * 8000; i < 6*8000; i++ { // after the greeting
		spoken[i] = int16(8000 * math.Sin(2*math.Pi*440*float64(i)/8000))
	}
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "in.wav"), wav(spoken), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "accounts"), []byte("<sip:+4930123456789@127.0.0.1>;regint=0;audio_codecs=PCMA/8000/1\n"), 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "contacts"), nil, 0o600))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "config"), fmt.Appendf(nil, `module_path /usr/lib/baresip/modules
module g711.so
module aufile.so
module aubridge.so
module sndfile.so
module_app account.so
module_app menu.so
sip_listen 127.0.0.1:%d
audio_source aufile,%s
audio_player aubridge,none
audio_alert aubridge,none
snd_path %s
`, testkit.FreePort(t), filepath.Join(dir, "in.wav"), dir), 0o600))
	cmd := exec.Command(program, "-f", dir, "-e", "/dial sip:bot@"+l.address)
	cmd.Dir = dir
	output := testkit.StartProgram(t, cmd, func(string) bool { return true })
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output of baresip:\n%s", output())
		}
	})
	id := l.channel()
	l.awaitMessage(id, `"I heard `)
	testkit.Until(t, "the greeting and the parrot were played", func() bool { return strings.Count(l.history(id), `"state":"played"`) == 2 })
	testkit.Must(t, cmd.Process.Signal(syscall.SIGINT)) // hangs up and completes the file
	l.awaitIdle()
	_, rest, _ := strings.Cut(l.history(id), `"text":"I heard `)
	phrase, _, _ := strings.Cut(rest, `"`)
	greeting, _ := l.speech("Hello, this is the demo bot. I repeat what you say.")
	announced, _ := l.speech("I heard " + phrase)
	want := append(append(decode(t, greeting), decode(t, announced)...), spoken[4*8000:6*8000]...)
	var heard []byte
	testkit.Until(t, "baresip has written the file", func() bool {
		files, _ := filepath.Glob(filepath.Join(dir, "dump-*-dec.wav"))
		if len(files) == 1 {
			heard, _ = os.ReadFile(files[0])
		}
		return len(heard) > 44+16000
	})
	wantLength, wantLevel := loudness(want)
	length, level := loudness(samplesOf(heard[44:]))
	if ratio := float64(length) / float64(wantLength); ratio < 0.8 || ratio > 1.2 || math.Abs(level-wantLevel) > 3 {
		t.Errorf("heard %v with %.1f dBFS, want about %v with %.1f dBFS", length, level, wantLength, wantLevel)
	}
}
