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
	"net/http"

	"telapi/internal/fault"
)

// Open streams audio of the team's from the media service, or the part of it
// that is asked for. The body of a whole answer fails before its end if it is
// not what was stored, so that nobody takes damaged audio for good.
func (s *Service) Open(ctx context.Context, teamID, name string, ask Conditions) (Blob, error) {
	hash, e, ok := ParseBlobName(name)
	if !ok || s.Blobs == nil {
		return Blob{}, notFound()
	}
	row, err := s.Store.Speech(ctx, hash)
	switch {
	case err != nil && !fault.Is(err, fault.NotFound):
		return Blob{}, fmt.Errorf("look up speech: %w", err)
	case err != nil || row.Variants[e] == "" || row.TeamID != teamID || row.expired(s.Now()):
		return Blob{}, notFound()
	}
	blob, err := s.Blobs.Get(ctx, BlobPath(hash, e), ask)
	if errors.Is(err, ErrBlobNotFound) {
		s.drop(ctx, row, e, "", err)
		return Blob{}, notFound()
	}
	if err != nil {
		return Blob{}, fault.Unavailable("The media service", err)
	}
	if !row.ExpiresAt.IsZero() { // for the media service nothing ever runs out
		blob.Headers["Cache-Control"] = fmt.Sprintf("private, max-age=%d", max(0, int64(row.ExpiresAt.Sub(s.Now()).Seconds())))
	}
	if blob.Status == http.StatusOK && !ask.Head {
		blob.Body = &verified{blob.Body, bufio.NewReader(blob.Body), sha256.New(), row.Variants[e], func() {
			s.drop(context.WithoutCancel(ctx), row, e, blob.Headers["ETag"], errDamaged)
		}}
	}
	return blob, nil
}

// notFound is the answer to every name that is none, or none of the team's.
func notFound() error {
	return fault.New(fault.NotFound, "There is no such audio. Have it made with POST %s.", Route)
}

// verified holds the end of a body back until the checksum of all is seen to be
// right.
type verified struct {
	io.Closer
	body *bufio.Reader
	sum  hash.Hash
	want string
	bad  func()
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.body.Read(p)
	v.sum.Write(p[:n])
	if err == nil {
		_, err = v.body.Peek(1) // is this the end?
	}
	if errors.Is(err, io.EOF) && hex.EncodeToString(v.sum.Sum(nil)) != v.want {
		v.bad()
		return 0, errDamaged
	}
	return n, err
}
