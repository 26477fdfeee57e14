package speech

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"

	"telapi/internal/fault"
)

// Playback is permission to read one variant of a recording.
type Playback struct {
	Path      string    // of the blob
	ExpiresAt time.Time // zero: never

	service   *Service
	recording Recording
	encoding  Encoding
}

// Open checks that the team may play the audio with the given name.
func (s *Service) Open(ctx context.Context, teamID, name string) (Playback, error) {
	hash, e, ok := ParseBlobName(name)
	if !ok || s.Blobs == nil {
		return Playback{}, errAudioNotFound
	}
	r, err := s.Store.Speech(ctx, hash)
	switch {
	case err != nil && !fault.Is(err, fault.NotFound):
		return Playback{}, fmt.Errorf("look up speech: %w", err)
	case err != nil || r.Variants[e] == "" || r.TeamID != teamID || r.expired(s.Now()):
		return Playback{}, errAudioNotFound
	}
	return Playback{BlobPath(hash, e), r.ExpiresAt, s, r, e}, nil
}

// errAudioNotFound is returned for unknown names and for those of other teams.
var errAudioNotFound = fault.New(fault.NotFound, "Audio not found. Create it with POST %s.", Route)

// Failed returns the error for the client when the blob could not be read. It
// deletes a variant whose blob is missing.
func (p Playback) Failed(ctx context.Context, err error) error {
	if errors.Is(err, ErrBlobNotFound) {
		p.service.drop(ctx, p.recording, p.encoding, "", err)
		return errAudioNotFound
	}
	return fault.Unavailable("The media service", err)
}

// Verify returns a reader of a complete body that fails before its end if the
// checksum is wrong, so that no client takes damaged audio for valid. The blob
// with the given version is then deleted.
func (p Playback) Verify(ctx context.Context, body io.Reader, version string) io.Reader {
	return &verifier{bufio.NewReader(body), sha256.New(), p.recording.Variants[p.encoding], func() {
		p.service.drop(context.WithoutCancel(ctx), p.recording, p.encoding, version, errDamaged)
	}}
}

// verifier withholds the last bytes of a body until its checksum is known.
type verifier struct {
	body      *bufio.Reader
	sum       hash.Hash
	want      string
	onDamaged func()
}

func (v *verifier) Read(p []byte) (int, error) {
	n, err := v.body.Read(p)
	v.sum.Write(p[:n])
	if err == nil {
		_, err = v.body.Peek(1)
	}
	if errors.Is(err, io.EOF) && hex.EncodeToString(v.sum.Sum(nil)) != v.want {
		v.onDamaged()
		return 0, errDamaged
	}
	return n, err
}
