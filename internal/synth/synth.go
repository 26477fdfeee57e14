// Package synth owns the providers of speech: services that speak the OpenAI
// interface, the program espeak-ng, and a built-in one that plays tones. Each
// fails soon and clearly, so that the next of the chain can take over.
package synth

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"telapi/internal/audio"
)

const (
	maxSeconds = 300            // at 24 kHz still fits into the media service's largest object
	minBytes   = 2 * 24000 / 50 // 20 ms: less than that says nothing
	maxBytes   = 2 * 24000 * maxSeconds
)

// rates are those that are made into ours without a filter of absurd length.
var rates = []int{8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000}

var (
	errSilent  = errors.New("nothing came from it for too long")
	errEndless = fmt.Errorf("it sent more than %d s of audio", maxSeconds)
)

// patience ends the context of work that gives no sign of life for a while.
type patience struct {
	limit time.Duration
	timer *time.Timer
}

func newPatience(ctx context.Context, limit time.Duration) (context.Context, patience, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(errSilent) })
	return ctx, patience{limit, timer}, func() {
		timer.Stop()
		cancel(nil)
	}
}

// readAll reads what may come in pieces, none of them late.
func (p patience) readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	var all []byte
	piece := make([]byte, 16<<10)
	for {
		n, err := r.Read(piece)
		if all = append(all, piece[:n]...); n > 0 {
			p.timer.Reset(p.limit)
		}
		switch {
		case err != nil && context.Cause(ctx) != nil: // a program that is killed ends its output in order
			return nil, context.Cause(ctx)
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read audio: %w", err)
		case len(all) > maxBytes:
			return nil, errEndless
		}
	}
}

// decode reads WAV, or else samples of that rate, and refuses what is neither.
func decode(body []byte, rate int) (audio.Sound, error) {
	if bytes.HasPrefix(body, []byte("RIFF")) {
		var err error
		if body, rate, err = wav(body); err != nil {
			return audio.Sound{}, err
		}
	}
	switch {
	case len(body) < minBytes || len(body)%2 != 0:
		return audio.Sound{}, fmt.Errorf("it sent %d bytes, which are no sound", len(body))
	case utf8.Valid(body) && bytes.IndexByte(body, 0) < 0:
		return audio.Sound{}, errors.New("it sent text in place of sound")
	}
	return audio.FromPCM(rate, body), nil
}

// wav finds the samples in a file of 16 bits mono. A writer that does not know
// the length in advance puts a fancy one: then the samples go on to the end.
func wav(file []byte) (samples []byte, rate int, err error) {
	rest, little := file[min(len(file), 12):], binary.LittleEndian
	for len(rest) >= 8 {
		id, size := string(rest[:4]), int64(little.Uint32(rest[4:]))
		body := rest[8:min(int64(len(rest)), 8+size)]
		switch {
		case id == "fmt " && len(body) >= 16:
			format, channels, bits := little.Uint16(body), little.Uint16(body[2:]), little.Uint16(body[14:])
			if rate = int(little.Uint32(body[4:])); format != 1 || channels != 1 || bits != 16 || !slices.Contains(rates, rate) {
				return nil, 0, fmt.Errorf("it sent WAV of format %d with %d channels of %d bits at %d Hz", format, channels, bits, rate)
			}
		case id == "data" && rate != 0:
			return body[:len(body)&^1], rate, nil
		}
		rest = rest[min(int64(len(rest)), 8+size+size%2):]
	}
	return nil, 0, errors.New("it sent WAV without samples")
}
