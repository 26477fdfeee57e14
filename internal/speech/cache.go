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

const (
	blobTimeout    = 3 * time.Second // of a call to the media service
	blobRetryDelay = 2 * time.Second // after a failed call
	touchInterval  = time.Hour       // between two updates of a recording's last use
)

var errDamaged = errors.New("blob checksum mismatch")

// blobsUsable reports whether there is a media service that did not fail within
// blobRetryDelay. A clock that was set back does not extend the delay.
func (s *Service) blobsUsable() bool {
	remaining := time.Duration(s.blobsRetryAt.Load() - s.Now().UnixNano())
	return s.Blobs != nil && (remaining <= 0 || remaining > blobRetryDelay)
}

// lookUp returns the verified audio of a recording from the cache. It creates a
// missing A-law variant from PCM. It deletes a variant whose blob is missing or
// damaged.
func (s *Service) lookUp(ctx context.Context, hash string, e Encoding) (found result, ok bool, err error) {
	rec, err := s.Store.Recording(ctx, hash)
	switch {
	case fault.Is(err, fault.NotFound), err == nil && rec.expired(s.Now()):
		return result{}, false, nil
	case err != nil:
		return result{}, false, fmt.Errorf("look up speech: %w", err)
	}
	s.touch(ctx, rec)
	if content := s.read(ctx, rec, e); content != nil {
		s.metrics.cache.WithLabelValues("hit").Inc()
		return result{recording: rec, audio: content, stored: true}, true, nil
	}
	if e != ALaw || !s.blobsUsable() { // the media service may have failed just now
		return result{}, false, nil
	}
	pcm := s.read(ctx, rec, PCM)
	if pcm == nil {
		return result{}, false, nil
	}
	s.metrics.cache.WithLabelValues("transcoded").Inc()
	found = result{recording: rec}
	if found.audio, err = s.encode(ctx, DecodePCM(rec.SampleRate, pcm), rec.SampleRate, e); err != nil {
		return result{}, false, err
	}
	s.save(ctx, &found, e)
	return found, true, nil
}

// touch records that a recording without an expiry is in use. Errors are logged: the
// next request tries again.
func (s *Service) touch(ctx context.Context, rec Recording) {
	now := s.Now()
	if !rec.ExpiresAt.IsZero() || now.Sub(rec.lastUse()) < touchInterval {
		return
	}
	if err := s.Store.TouchRecording(ctx, rec.Hash, now); err != nil {
		s.Log.WarnContext(ctx, "use of cached speech not recorded", "hash", rec.Hash, "error", err)
	}
}

// read returns the verified blob of a variant, or nil.
func (s *Service) read(ctx context.Context, rec Recording, e Encoding) []byte {
	if rec.Variants[e] == "" {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	content, version, err := s.Blobs.Get(bounded, BlobPath(rec.Hash, e))
	if err == nil && checksum(content) != rec.Variants[e] {
		err = errDamaged
	}
	switch {
	case err == nil:
		return content
	case errors.Is(err, errDamaged), errors.Is(err, ErrBlobNotFound):
		s.deleteVariant(ctx, rec, e, version, err)
	default:
		s.blobsFailed(ctx, err)
	}
	return nil
}

// save stores audio as a variant of its recording. It writes the blob first, so
// that no recording refers to a missing blob. Errors are logged: the request
// succeeds without the cache.
func (s *Service) save(ctx context.Context, made *result, e Encoding) {
	if !s.blobsUsable() {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	rec := made.recording
	rec.Variants = map[Encoding]string{e: checksum(made.audio)}
	err := s.Blobs.Put(bounded, BlobPath(rec.Hash, e), made.audio)
	if err != nil && !errors.Is(err, ErrBlobRejected) {
		s.blobsFailed(ctx, err)
		return
	}
	if err == nil {
		rec, err = s.Store.SaveRecording(ctx, rec)
	}
	if err != nil {
		s.Log.WarnContext(ctx, "speech not cached", "error", err)
		return
	}
	made.recording, made.stored = rec, !rec.expired(s.Now())
}

// deleteVariant deletes a variant whose blob is missing or damaged, unless it has been
// replaced. Version is that of a damaged blob. A missing one has none.
func (s *Service) deleteVariant(ctx context.Context, rec Recording, e Encoding, version string, reason error) {
	s.metrics.cache.WithLabelValues("bad_blob").Inc()
	s.Log.WarnContext(ctx, "deleting cached speech", "hash", rec.Hash, "encoding", e, "error", reason)
	if errors.Is(reason, errDamaged) {
		gone, err := s.Blobs.DeleteVersion(ctx, BlobPath(rec.Hash, e), version)
		if err != nil {
			s.blobsFailed(ctx, err)
		} else if !gone {
			return
		}
	}
	if err := s.Store.DeleteVariant(ctx, rec.Hash, e, rec.Variants[e]); err != nil {
		s.Log.WarnContext(ctx, "cached speech not deleted", "hash", rec.Hash, "error", err)
	}
}

// blobsFailed suspends use of the media service for blobRetryDelay, unless the
// call failed because the caller's own context ended.
func (s *Service) blobsFailed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.metrics.cache.WithLabelValues("away").Inc()
	s.blobsRetryAt.Store(s.Now().Add(blobRetryDelay).UnixNano())
	s.Log.WarnContext(ctx, "media service unavailable; speech is not cached", "error", err)
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// encode resamples and encodes sound. Concurrent encodings are limited.
func (s *Service) encode(ctx context.Context, sound Sound, rate int, e Encoding) ([]byte, error) {
	select {
	case s.encoders <- struct{}{}:
		defer func() { <-s.encoders }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait to encode speech: %w", ctx.Err())
	}
	sound = sound.Resample(rate)
	if e == ALaw {
		return sound.ALaw(), nil
	}
	return sound.PCM(), nil
}

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
	hash, e, ok := parseBlobName(name)
	if !ok || s.Blobs == nil {
		return Playback{}, errAudioNotFound
	}
	r, err := s.Store.Recording(ctx, hash)
	switch {
	case fault.Is(err, fault.NotFound), err == nil && (r.Variants[e] == "" || r.TeamID != teamID || r.expired(s.Now())):
		return Playback{}, errAudioNotFound
	case err != nil:
		return Playback{}, fmt.Errorf("look up speech: %w", err)
	}
	s.touch(ctx, r)
	return Playback{BlobPath(hash, e), r.ExpiresAt, s, r, e}, nil
}

// errAudioNotFound is returned for unknown names and for those of other teams.
var errAudioNotFound = fault.New(fault.NotFound, "Audio not found. Create it with POST %s.", Route)

// Failed returns the error for the client when the blob could not be read. It
// deletes a variant whose blob is missing.
func (p Playback) Failed(ctx context.Context, err error) error {
	if errors.Is(err, ErrBlobNotFound) {
		p.service.deleteVariant(ctx, p.recording, p.encoding, "", err)
		return errAudioNotFound
	}
	return fault.Unavailable("The media service", err)
}

// Verify returns a reader of a complete body that fails before its end if the
// checksum is wrong, so that no client takes damaged audio for valid. The blob
// with the given version is then deleted.
func (p Playback) Verify(ctx context.Context, body io.Reader, version string) io.Reader {
	return &verifier{bufio.NewReader(body), sha256.New(), p.recording.Variants[p.encoding], func() {
		p.service.deleteVariant(context.WithoutCancel(ctx), p.recording, p.encoding, version, errDamaged)
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
