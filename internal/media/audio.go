package media

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"telapi/internal/speech"
)

// Bounds of the audio of a speech provider. Providers fail fast, so that the next one can
// be tried.
const (
	maxAudioSeconds = 300            // at 24 kHz this fits into the largest blob
	minAudioBytes   = 2 * 24000 / 50 // 20 ms at 24 kHz; shorter audio is an error
	maxAudioBytes   = 2 * 24000 * maxAudioSeconds
)

// sampleRates are the supported rates. Others would need very long filters to
// resample.
var sampleRates = []int{8000, 11025, 16000, 22050, 24000, 32000, 44100, 48000}

var (
	errStalled = errors.New("no data before the timeout")
	errTooLong = fmt.Errorf("more than %d s of audio", maxAudioSeconds)
)

// readAudio reads audio until its end or that of ctx.
func readAudio(ctx context.Context, r io.Reader) ([]byte, error) {
	all, err := io.ReadAll(io.LimitReader(r, maxAudioBytes+1))
	switch {
	case context.Cause(ctx) != nil: // also after EOF: the output of a killed program ends normally
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, fmt.Errorf("read audio: %w", err)
	case len(all) > maxAudioBytes:
		return nil, errTooLong
	}
	return all, nil
}

// decode decodes WAV, or PCM with the given sample rate. It rejects other data.
func decode(body []byte, rate int) (speech.Sound, error) {
	if bytes.HasPrefix(body, []byte("RIFF")) {
		var err error
		if body, rate, err = parseWAV(body); err != nil {
			return speech.Sound{}, err
		}
	}
	switch {
	case len(body) < minAudioBytes || len(body)%2 != 0:
		return speech.Sound{}, fmt.Errorf("invalid audio: %d bytes", len(body))
	case utf8.Valid(body) && bytes.IndexByte(body, 0) < 0:
		return speech.Sound{}, errors.New("received text instead of audio")
	}
	return speech.DecodePCM(rate, body), nil
}

// parseWAV returns the samples of a 16-bit mono file. If the length in the file is too large, as
// from a program that did not know it in advance, the samples extend to the end.
func parseWAV(file []byte) (samples []byte, rate int, err error) {
	rest, little := file[min(len(file), 12):], binary.LittleEndian // after the RIFF header
	for len(rest) >= 8 {
		id, size := string(rest[:4]), int64(little.Uint32(rest[4:]))
		body := rest[8:min(int64(len(rest)), 8+size)]
		switch {
		case id == "fmt " && len(body) >= 16:
			format, channels, bits := little.Uint16(body), little.Uint16(body[2:]), little.Uint16(body[14:])
			rate = int(little.Uint32(body[4:]))
			if format != 1 || channels != 1 || bits != 16 || !slices.Contains(sampleRates, rate) {
				return nil, 0, fmt.Errorf("unsupported WAV: format %d, %d channels, %d bits, %d Hz", format, channels, bits, rate)
			}
		case id == "data" && rate != 0:
			return body[:len(body)&^1], rate, nil
		}
		rest = rest[min(int64(len(rest)), 8+size+size%2):]
	}
	return nil, 0, errors.New("invalid WAV: no samples")
}
