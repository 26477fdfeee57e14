package speech

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"telapi/internal/audio"
	"telapi/internal/fault"
)

const (
	// blobTime bounds how long a call waits for the media service, and awayTime
	// how long it is then left alone.
	blobTime = 3 * time.Second
	awayTime = 2 * time.Second

	maxBlob    = 64 << 20
	touchEvery = time.Hour
)

// errDamaged is a blob that is not what was stored.
var errDamaged = errors.New("the blob's checksum is not the one that was kept")

// cache is the rows and the blobs together.
type cache struct {
	rows    Rows
	blobs   Blobs
	log     *slog.Logger
	metrics metrics
	now     func() time.Time
	awayTil atomic.Int64 // when the media service is tried again
}

// usable tells whether there is a media service, not known to be away.
func (c *cache) usable() bool { return c.blobs != nil && c.now().UnixNano() >= c.awayTil.Load() }

// find returns the wanted row's audio, checked, or nil. A missing variant is
// made from one that has lost nothing. A blob that is missing or damaged is
// dropped.
func (c *cache) find(ctx context.Context, want Row, e Encoding) (*rendering, error) {
	row, err := c.rows.Speech(ctx, want.Hash)
	switch {
	case fault.Is(err, fault.NotFound), err == nil && row.expired(c.now()):
		return nil, nil //nolint:nilnil // nothing there is an answer
	case err != nil:
		return nil, fmt.Errorf("look up speech: %w", err)
	}
	if audio := c.read(ctx, row, e); audio != nil {
		c.metrics.cache.WithLabelValues(cacheHit).Inc()
		c.touch(ctx, row)
		return &rendering{row: row, audio: audio, stored: true}, nil
	}
	if e == ALaw && c.usable() {
		if source := c.read(ctx, row, PCM); source != nil {
			c.metrics.cache.WithLabelValues(cacheTranscoded).Inc()
			return c.keep(ctx, row, e, audio.FromPCM(row.SampleRate, source)), nil
		}
	}
	return nil, nil //nolint:nilnil // nothing there is an answer
}

func (r Row) expired(now time.Time) bool { return !r.ExpiresAt.IsZero() && !now.Before(r.ExpiresAt) }

// read returns a variant's blob that is what was stored, else nil.
func (c *cache) read(ctx context.Context, row Row, e Encoding) []byte {
	if row.Variants[e] == "" {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, blobTime)
	defer cancel()
	audio, err := c.fetch(bounded, row, e)
	switch {
	case err == nil:
		return audio
	case errors.Is(err, errDamaged), errors.Is(err, ErrNoBlob):
		c.drop(ctx, row, e, err)
	default:
		c.lost(ctx, err)
	}
	return nil
}

func (c *cache) fetch(ctx context.Context, row Row, e Encoding) ([]byte, error) {
	blob, err := c.blobs.Get(ctx, Path(row.Hash, e), Conditions{})
	if err != nil {
		return nil, err
	}
	defer blob.Body.Close()
	audio, err := io.ReadAll(io.LimitReader(blob.Body, maxBlob))
	if err != nil {
		return nil, fmt.Errorf("read a blob: %w", err)
	}
	if checksum(audio) != row.Variants[e] {
		return nil, errDamaged
	}
	return audio, nil
}

// keep stores a sound as a variant of its row, the blob first: no row ever points
// at nothing. Where the media service or the database is away it is not stored.
func (c *cache) keep(ctx context.Context, row Row, e Encoding, sound audio.Sound) *rendering {
	made := &rendering{row: row, audio: encode(sound.At(row.SampleRate), e)}
	if !c.usable() {
		return made
	}
	bounded, cancel := context.WithTimeout(ctx, blobTime)
	defer cancel()
	err := c.blobs.Put(bounded, Path(row.Hash, e), made.audio)
	if err != nil && !errors.Is(err, ErrTooLarge) {
		c.lost(ctx, err)
	}
	if err != nil {
		return made
	}
	row.Variants = map[Encoding]string{e: checksum(made.audio)}
	kept, err := c.rows.SaveSpeech(ctx, row)
	if err != nil {
		c.log.WarnContext(ctx, "speech was not kept", "error", err)
		return made
	}
	made.row, made.stored = kept, true
	return made
}

// drop forgets a variant whose blob is no good.
func (c *cache) drop(ctx context.Context, row Row, e Encoding, why error) {
	c.metrics.cache.WithLabelValues(cacheBad).Inc()
	c.log.WarnContext(ctx, "cached speech is dropped", "hash", row.Hash, "encoding", e, "error", why)
	if err := c.rows.DropSpeech(ctx, row.Hash, e, row.Variants[e]); err != nil {
		c.log.WarnContext(ctx, "cached speech was not dropped", "hash", row.Hash, "error", err)
	}
	if errors.Is(why, errDamaged) {
		if err := c.blobs.Delete(ctx, Path(row.Hash, e)); err != nil && !errors.Is(err, ErrNoBlob) {
			c.lost(ctx, err)
		}
	}
}

// lost leaves the media service alone for a moment, unless it is the caller who
// ran out of time.
func (c *cache) lost(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	c.metrics.cache.WithLabelValues(cacheAway).Inc()
	c.awayTil.Store(c.now().Add(awayTime).UnixNano())
	c.log.WarnContext(ctx, "speech goes on without the media service", "error", err)
}

func (c *cache) touch(ctx context.Context, row Row) {
	if c.now().Sub(row.UsedAt) < touchEvery {
		return
	}
	if err := c.rows.TouchSpeech(ctx, row.Hash, c.now()); err != nil {
		c.log.WarnContext(ctx, "the use of cached speech was not noted", "error", err)
	}
}

func checksum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func encode(s audio.Sound, e Encoding) []byte {
	if e == ALaw {
		return s.ALaw()
	}
	return s.PCM()
}
