package media

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"telapi/internal/background"
	"telapi/internal/speech"
)

const (
	defaultWPM = 175 // words per minute
	minWPM     = 80
	maxWPM     = 700
)

// Espeak runs espeak-ng, one process per synthesis.
type Espeak struct {
	program string
	voice   string          // the default
	voices  map[string]bool // supported, by language
	timeout time.Duration
	slots   chan struct{} // limits the number of processes
}

var (
	_ speech.Provider    = (*Espeak)(nil)
	_ speech.VoiceLister = (*Espeak)(nil)
)

// NewEspeak finds the program and lists its voices.
func NewEspeak(ctx context.Context, voice string, timeout time.Duration) (*Espeak, error) {
	program, err := exec.LookPath("espeak-ng")
	if err != nil {
		return nil, fmt.Errorf("speech provider espeak: install the program espeak-ng (Debian package espeak-ng): %w", err)
	}
	list, err := exec.CommandContext(ctx, program, "--voices").Output() //nolint:gosec // the program is found in PATH
	if err != nil {
		return nil, fmt.Errorf("list espeak-ng voices: %w", err)
	}
	e := &Espeak{program, voice, map[string]bool{}, timeout, make(chan struct{}, 2*runtime.NumCPU())}
	for line := range strings.Lines(string(list)) {
		columns := strings.Fields(line)              // priority, language, gender, name, file, other languages
		if len(columns) < 5 || columns[0] == "Pty" { // not a voice, or the header
			continue
		}
		e.voices[columns[1]] = true
		for _, other := range columns[5:] { // of the form (en 2)
			if language, ok := strings.CutPrefix(other, "("); ok {
				e.voices[language] = true
			}
		}
	}
	if !e.supports(voice) {
		return nil, fmt.Errorf("unknown espeak-ng voice %q: run espeak-ng --voices for a list", voice)
	}
	return e, nil
}

// supports reports whether there is a voice. It may have a variant, as in de+f3.
func (e *Espeak) supports(voice string) bool {
	base, variant, _ := strings.Cut(voice, "+")
	return e.voices[base] && !strings.ContainsAny(variant, "/.+")
}

// Voices implements speech.VoiceLister.
func (e *Espeak) Voices() []string { return slices.Sorted(maps.Keys(e.voices)) }

// Name implements speech.Provider.
func (e *Espeak) Name() string { return "espeak" }

// Resolve implements speech.Provider. There is only one model.
func (e *Espeak) Resolve(voice, _ string) (string, string) {
	if !e.supports(voice) {
		voice = e.voice
	}
	return voice, "espeak-ng"
}

// Synthesize implements speech.Provider. The text is sent through a pipe. The
// only part of a request on the command line is the name of a known voice, which
// prevents injection of options.
func (e *Espeak) Synthesize(ctx context.Context, u speech.Utterance) (speech.Sound, error) {
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	case <-ctx.Done():
		return speech.Sound{}, ctx.Err()
	}
	ctx, watchdog := background.NewWatchdog(ctx, e.timeout, errStalled)
	defer watchdog.Stop()
	wpm := strconv.Itoa(int(min(maxWPM, max(minWPM, defaultWPM*u.Speed))))
	cmd := exec.CommandContext(ctx, e.program, "--stdin", "-b", "1", "-v", u.Voice, "-s", wpm, "--stdout") //nolint:gosec // see above
	cmd.Stdin = strings.NewReader(u.Text)
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return speech.Sound{}, fmt.Errorf("start espeak-ng: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return speech.Sound{}, fmt.Errorf("start espeak-ng: %w", err)
	}
	file, err := readAudio(ctx, watchdog.Watch(out))
	if err != nil {
		watchdog.Stop() // kills the process
	}
	switch exitErr := cmd.Wait(); {
	case errors.Is(err, errTooLong):
		return speech.Sound{}, fmt.Errorf("%w: %w", speech.ErrRejected, err)
	case err != nil || exitErr != nil:
		return speech.Sound{}, fmt.Errorf("run espeak-ng: %w", errors.Join(err, exitErr))
	}
	sound, err := decode(file, 0) // a WAV file contains its rate
	if err != nil {               // the text has nothing to say, such as "-"
		err = fmt.Errorf("%w: %w", speech.ErrRejected, err)
	}
	return sound, err
}
