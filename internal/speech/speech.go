// Package speech creates audio from text and caches it. It validates requests,
// derives cache keys, runs one synthesis for concurrent identical requests on
// all instances, falls back from one provider to the next, and removes expired
// and orphaned audio.
//
// It also counts the characters of each team. Servers and call runtimes append a usage
// report to a stream for each speech request. A ReportConsumer counts every report once.
package speech

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Encoding is an audio encoding. Its value is also the extension of the blob.
type Encoding string

// All encodings are mono. PCM is signed 16-bit little endian.
const (
	ALaw Encoding = "alaw"
	PCM  Encoding = "pcm"
)

// Encodings lists all encodings.
var Encodings = []Encoding{ALaw, PCM}

// Recording describes a synthesized utterance in the cache. Each of its variants
// is a blob at BlobPath.
type Recording struct {
	Hash       string // identifies the recording; see Hash
	TeamID     string
	Provider   string
	Utterance  // with the voice and model that the provider used
	SampleRate int
	Variants   map[Encoding]string // SHA-256 of the blob in hex
	CreatedAt  time.Time
	UsedAt     time.Time // last request, up to touchInterval too early; may be zero
	ExpiresAt  time.Time // zero: it expires when it was not used for the Cleaner's retention
}

// lastUse returns the time of the last request.
func (r Recording) lastUse() time.Time {
	if r.UsedAt.After(r.CreatedAt) {
		return r.UsedAt
	}
	return r.CreatedAt
}

func (r Recording) expired(now time.Time) bool {
	return !r.ExpiresAt.IsZero() && !now.Before(r.ExpiresAt)
}

// Store keeps recordings. It is safe for concurrent use.
type Store interface {
	// Recording returns a recording, or fails with fault.NotFound.
	Recording(ctx context.Context, hash string) (Recording, error)
	// SaveRecording adds the variants of r to the recording with the same hash and
	// returns the result. A missing or expired recording is replaced by r.
	// Concurrent calls lose no variants.
	SaveRecording(ctx context.Context, r Recording) (Recording, error)
	// DeleteVariant deletes a variant if it has the given checksum. It
	// deletes the recording with its last variant.
	DeleteVariant(ctx context.Context, hash string, e Encoding, checksum string) error
	// ListRecordings lists recordings with a hash greater than after, in order of
	// hash.
	ListRecordings(ctx context.Context, filter RecordingFilter, after string, limit int) ([]Recording, error)
	// TouchRecording sets UsedAt of a recording, if it exists.
	TouchRecording(ctx context.Context, hash string, usedAt time.Time) error
	// DeleteUnchangedRecording deletes a recording unless its expiry or its last use
	// has changed.
	DeleteUnchangedRecording(ctx context.Context, r Recording) error
}

// RecordingFilter selects the recordings that have expired at a time, those without an
// expiry that were not used after a time, or all if it is zero.
type RecordingFilter struct{ ExpiredBy, UnusedSince time.Time }

// Errors of a BlobStore. Any other error counts as ErrBlobsUnavailable.
var (
	ErrBlobNotFound     = errors.New("blob not found")
	ErrBlobsUnavailable = errors.New("media service unavailable")
	ErrBlobRejected     = errors.New("media service rejected the blob") // for example because it is too large
)

// BlobInfo describes a stored blob.
type BlobInfo struct {
	Path       string    `json:"path"`
	Bytes      int64     `json:"bytes"`
	ModifiedAt time.Time `json:"modifiedAt"`
}

// BlobStore is the media service. Paths are those of BlobPath. It is safe for
// concurrent use.
type BlobStore interface {
	// Get returns a blob and its version, which changes with every Put.
	Get(ctx context.Context, path string) (content []byte, version string, err error)
	// Exists reports whether there is a blob.
	Exists(ctx context.Context, path string) (bool, error)
	// Put stores a blob completely or not at all.
	Put(ctx context.Context, path string, content []byte) error
	// DeleteVersion deletes a blob if it has the given version, and reports
	// whether the blob is gone.
	DeleteVersion(ctx context.Context, path, version string) (gone bool, err error)
	// DeleteUnmodifiedSince deletes a blob unless it was modified after the
	// given time, and reports whether the blob is gone.
	DeleteUnmodifiedSince(ctx context.Context, path string, since time.Time) (gone bool, err error)
	// List returns blobs with a path greater than after, in order of path. An
	// empty page is the end.
	List(ctx context.Context, after string, limit int) ([]BlobInfo, error)
}

// Leases are named locks shared by all instances. They are renewed until they
// are released; the lease of a crashed process expires within seconds.
type Leases interface {
	// Acquire waits for the lease and reports whether it had to wait.
	Acquire(ctx context.Context, name string) (release func(), waited bool, err error)
	// Try takes the lease if it is free. The returned context ends when the
	// lease is released or may have been lost.
	Try(ctx context.Context, name string) (leaseCtx context.Context, release func(), held bool, err error)
}

// hashVersion is an input of every hash. Change it when the other inputs change,
// or when the same inputs produce different audio. Recordings with the old version
// are then no longer found.
const hashVersion = "telapi-speech-1"

// Hash returns the hash of a recording. It covers the version, the team and all
// inputs of the synthesis except the encoding. Each input is preceded by its
// length, so that different inputs never concatenate to the same text.
func Hash(teamID, provider string, sampleRate int, u Utterance) string {
	h := sha256.New()
	for _, part := range []string{
		hashVersion, teamID, provider, u.Model, u.Voice, strconv.FormatFloat(u.Speed, 'g', -1, 64), strconv.Itoa(sampleRate), u.Text,
	} {
		_, _ = fmt.Fprintf(h, "%d:%s,", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// BlobPath returns the path of a variant: a shard named after the first two
// digits of the hash, and the hash with the encoding as extension.
func BlobPath(hash string, e Encoding) string { return hash[:2] + "/" + hash + "." + string(e) }

var hashForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// parseBlobName parses the last element of a BlobPath.
func parseBlobName(name string) (hash string, e Encoding, ok bool) {
	hash, extension, _ := strings.Cut(name, ".")
	e = Encoding(extension)
	return hash, e, slices.Contains(Encodings, e) && hashForm.MatchString(hash)
}
