package speech

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"telapi/internal/audio"
	"telapi/internal/fault"
)

const (
	// blobTime bounds how long a call waits for the media service, and awayTime
	// how long it is then left alone.
	blobTime = 3 * time.Second
	awayTime = 2 * time.Second

	maxBlob = 64 << 20
)

// errDamaged is a blob that is not what was stored.
var errDamaged = errors.New("the blob's checksum is not the one that was kept")

// usable tells whether there is a media service, not known to be away. A clock
// that is set back does not keep it away.
func (s *Service) usable() bool {
	left := time.Duration(s.awayTil.Load() - s.Now().UnixNano())
	return s.Blobs != nil && (left <= 0 || left > awayTime)
}

// recall returns the wanted row's audio from the cache, checked. A missing
// variant is made from one that has lost nothing. A blob that is missing or
// damaged is dropped.
func (s *Service) recall(ctx context.Context, want Recording, e Encoding) (found rendering, ok bool, err error) {
	row, err := s.Store.Speech(ctx, want.Hash)
	switch {
	case fault.Is(err, fault.NotFound), err == nil && row.expired(s.Now()):
		return rendering{}, false, nil
	case err != nil:
		return rendering{}, false, fmt.Errorf("look up speech: %w", err)
	}
	if blob := s.read(ctx, row, e); blob != nil {
		s.metrics.cache.WithLabelValues("hit").Inc()
		return rendering{row: row, audio: blob, stored: true}, true, nil
	}
	if e != ALaw || !s.usable() {
		return rendering{}, false, nil
	}
	source := s.read(ctx, row, PCM)
	if source == nil {
		return rendering{}, false, nil
	}
	s.metrics.cache.WithLabelValues("transcoded").Inc()
	found = rendering{row: row}
	if found.audio, err = s.encode(ctx, audio.FromPCM(row.SampleRate, source), row.SampleRate, e); err != nil {
		return rendering{}, false, err
	}
	s.keep(ctx, &found, e)
	return found, true, nil
}

func (r Recording) expired(now time.Time) bool {
	return !r.ExpiresAt.IsZero() && !now.Before(r.ExpiresAt)
}

// read returns a variant's blob that is what was stored, else nil.
func (s *Service) read(ctx context.Context, row Recording, e Encoding) []byte {
	if row.Variants[e] == "" {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, blobTime)
	defer cancel()
	audio, etag, err := s.fetch(bounded, row, e)
	switch {
	case err == nil:
		return audio
	case errors.Is(err, errDamaged), errors.Is(err, ErrBlobNotFound):
		s.drop(ctx, row, e, etag, err)
	default:
		s.lost(ctx, err)
	}
	return nil
}

func (s *Service) fetch(ctx context.Context, row Recording, e Encoding) (audio []byte, etag string, err error) {
	blob, err := s.Blobs.Get(ctx, BlobPath(row.Hash, e), Conditions{})
	if err != nil {
		return nil, "", err
	}
	defer blob.Body.Close()
	if audio, err = io.ReadAll(io.LimitReader(blob.Body, maxBlob)); err != nil {
		return nil, "", fmt.Errorf("read a blob: %w", err)
	}
	if checksum(audio) != row.Variants[e] {
		err = errDamaged
	}
	return audio, blob.Headers["ETag"], err
}

// keep stores audio as a variant of its row, the blob first: no row ever points
// at nothing. Where the media service or the database is away it is not stored.
func (s *Service) keep(ctx context.Context, made *rendering, e Encoding) {
	if !s.usable() {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, blobTime)
	defer cancel()
	switch err := s.Blobs.Put(bounded, BlobPath(made.row.Hash, e), made.audio); {
	case errors.Is(err, ErrBlobRejected):
		s.Log.WarnContext(ctx, "speech was not kept", "error", err)
		return
	case err != nil:
		s.lost(ctx, err)
		return
	}
	row := made.row
	row.Variants = map[Encoding]string{e: checksum(made.audio)}
	kept, err := s.Store.SaveSpeech(ctx, row)
	if err != nil {
		s.Log.WarnContext(ctx, "speech was not kept", "error", err)
		return
	}
	made.row, made.stored = kept, !kept.expired(s.Now())
}

// drop forgets a variant whose blob is missing or, by that ETag, damaged, unless
// it has been made again meanwhile.
func (s *Service) drop(ctx context.Context, row Recording, e Encoding, etag string, why error) {
	s.metrics.cache.WithLabelValues("bad_blob").Inc()
	s.Log.WarnContext(ctx, "cached speech is dropped", "hash", row.Hash, "encoding", e, "error", why)
	if errors.Is(why, errDamaged) {
		gone, err := s.Blobs.DeleteIfMatch(ctx, BlobPath(row.Hash, e), etag)
		if err != nil {
			s.lost(ctx, err)
		} else if !gone {
			return
		}
	}
	if err := s.Store.DeleteSpeechVariant(ctx, row.Hash, e, row.Variants[e]); err != nil {
		s.Log.WarnContext(ctx, "cached speech was not dropped", "hash", row.Hash, "error", err)
	}
}

// lost leaves the media service alone for a moment, unless it is the caller who
// ran out of time.
func (s *Service) lost(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.metrics.cache.WithLabelValues("away").Inc()
	s.awayTil.Store(s.Now().Add(awayTime).UnixNano())
	s.Log.WarnContext(ctx, "speech goes on without the media service", "error", err)
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// encode makes the bytes of a sound, when it is its turn.
func (s *Service) encode(ctx context.Context, sound audio.Sound, rate int, e Encoding) ([]byte, error) {
	select {
	case s.work <- struct{}{}:
		defer func() { <-s.work }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait to encode speech: %w", ctx.Err())
	}
	if sound = sound.Resample(rate); e == ALaw {
		return sound.ALaw(), nil
	}
	return sound.PCM(), nil
}
