package synth

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"telapi/internal/audio"
	"telapi/internal/speech"
)

const (
	wordsPerMinute = 175 // espeak's own pace
	slowest        = 80  // as far as it follows
	fastest        = 700
)

// Espeak speaks with espeak-ng, in a process for each sentence.
type Espeak struct {
	program string
	voice   string          // where none that it has is asked for
	voices  map[string]bool // by language
	timeout time.Duration
	slots   chan struct{} // processes at a time
}

var _ speech.Provider = (*Espeak)(nil)

// NewEspeak finds the program and asks it for its voices.
func NewEspeak(ctx context.Context, voice string, timeout time.Duration) (*Espeak, error) {
	program, err := exec.LookPath("espeak-ng")
	if err != nil {
		return nil, fmt.Errorf("the speech provider espeak needs the program espeak-ng (Debian package espeak-ng): %w", err)
	}
	list, err := exec.CommandContext(ctx, program, "--voices").Output() //nolint:gosec // as PATH has it
	if err != nil {
		return nil, fmt.Errorf("ask espeak-ng for its voices: %w", err)
	}
	e := &Espeak{program, voice, map[string]bool{}, timeout, make(chan struct{}, 2*runtime.NumCPU())}
	for line := range strings.Lines(string(list)) {
		columns := strings.Fields(line)
		if len(columns) < 5 {
			continue
		}
		e.voices[columns[1]] = true
		for _, other := range columns[5:] { // of the form (en 2)
			if language, ok := strings.CutPrefix(other, "("); ok {
				e.voices[language] = true
			}
		}
	}
	if !e.has(voice) {
		return nil, fmt.Errorf("espeak-ng has no voice %q; espeak-ng --voices lists what it has", voice)
	}
	return e, nil
}

// has knows a voice with or without a variant, as in de+f3.
func (e *Espeak) has(voice string) bool {
	base, variant, _ := strings.Cut(voice, "+")
	return e.voices[base] && !strings.ContainsAny(variant, "/.+")
}

// Name implements speech.Provider.
func (e *Espeak) Name() string { return "espeak" }

// Resolve implements speech.Provider. Models it has none.
func (e *Espeak) Resolve(voice, _ string) (string, string) {
	if !e.has(voice) {
		voice = e.voice
	}
	return voice, "espeak-ng"
}

// Synthesize implements speech.Provider. The text goes through a pipe: nothing a
// caller sends is ever part of a command line but the name of a known voice.
func (e *Espeak) Synthesize(ctx context.Context, u speech.Utterance) (audio.Sound, error) {
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	case <-ctx.Done():
		return audio.Sound{}, ctx.Err()
	}
	ctx, patience, done := newPatience(ctx, e.timeout)
	defer done()
	pace := strconv.Itoa(int(min(fastest, max(slowest, wordsPerMinute*u.Speed))))
	cmd := exec.CommandContext(ctx, e.program, "--stdin", "-b", "1", "-v", u.Voice, "-s", pace, "--stdout") //nolint:gosec // see above
	cmd.Stdin = strings.NewReader(u.Text)
	cmd.WaitDelay = time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return audio.Sound{}, fmt.Errorf("start espeak-ng: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return audio.Sound{}, fmt.Errorf("start espeak-ng: %w", err)
	}
	file, err := patience.readAll(ctx, out)
	if err != nil {
		done() // or it would be waited for
	}
	switch ended := cmd.Wait(); {
	case errors.Is(err, errEndless):
		return audio.Sound{}, fmt.Errorf("%w: %w", speech.ErrRejected, err)
	case err != nil || ended != nil:
		return audio.Sound{}, fmt.Errorf("run espeak-ng: %w", errors.Join(err, ended))
	}
	sound, err := decode(file, 0)
	if err != nil { // it is well, and found nothing to say in a text such as "-"
		err = fmt.Errorf("%w: %w", speech.ErrRejected, err)
	}
	return sound, err
}
