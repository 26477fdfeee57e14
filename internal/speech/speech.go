// Package speech owns spoken sentences: what may be asked for, the key under
// which a sentence is kept in the media cache, one synthesis for any number of
// simultaneous askers on all instances, and the chain of providers that make
// what is not there yet.
package speech

import (
	"context"
	"errors"
	"io"
	"time"

	"telapi/callruntime/wire"
)

// Encoding is a form in which a sentence is kept.
type Encoding string

// A-law is that of telephones; PCM is signed, 16 bit, little endian. Both are mono.
const (
	ALaw Encoding = "alaw"
	PCM  Encoding = "pcm"
)

// Encodings lists them all. Their names are also the extensions of blobs.
var Encodings = []Encoding{ALaw, PCM}

// Recording is a sentence in the cache. Every variant of it is a blob at BlobPath.
type Recording struct {
	Hash       string
	TeamID     string
	Sentence   string
	Provider   string
	Voice      string
	Model      string
	Speed      float64
	SampleRate int
	Variants   map[Encoding]string // the SHA-256 of each one's blob, in hex
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero: never
}

// Store keeps what is known about cached sentences.
type Store interface {
	// Speech returns a row, or fails with fault.NotFound.
	Speech(ctx context.Context, hash string) (Recording, error)
	// SaveSpeech adds the row's variants to the row of that hash, in place of
	// those of the same encoding, and returns what there is then. Where there
	// is none, or one that has expired, the given one takes its place.
	// Simultaneous calls lose nothing.
	SaveSpeech(ctx context.Context, r Recording) (Recording, error)
	// DeleteSpeechVariant removes a variant as long as it has that checksum, and a row
	// whose last one it was.
	DeleteSpeechVariant(ctx context.Context, hash string, e Encoding, checksum string) error
	// ListSpeech lists recordings with a hash greater than after, in order of
	// hash. Unless expiredBy is zero it lists only those expired at that time.
	ListSpeech(ctx context.Context, after string, expiredBy time.Time, limit int) ([]Recording, error)
	// DeleteExpiredSpeech deletes a recording unless its expiry has changed.
	DeleteExpiredSpeech(ctx context.Context, r Recording) error
}

// Errors by which BlobStore tell why there is no answer. Everything else counts as
// ErrBlobsUnavailable.
var (
	ErrBlobNotFound     = errors.New("no such blob")
	ErrBlobsUnavailable = errors.New("the media service is away")
	ErrBlobRejected     = errors.New("the media service does not take this") // and has what it has
)

// BlobStore is the media service. Paths are those of BlobPath.
type BlobStore interface {
	// Get opens a blob. The body is to be closed by the caller; reading it is
	// bounded by ctx alone.
	Get(ctx context.Context, path string, ask Conditions) (Blob, error)
	// Put stores a blob whole, or not at all.
	Put(ctx context.Context, path string, body []byte) error
	// DeleteIfMatch removes a blob as long as it is the one with that ETag, and
	// tells whether it is gone.
	DeleteIfMatch(ctx context.Context, path, etag string) (gone bool, err error)
	// DeleteUnmodifiedSince deletes a blob unless it was modified after the
	// given time, and reports whether it is gone.
	DeleteUnmodifiedSince(ctx context.Context, path string, since time.Time) (gone bool, err error)
	// List returns blobs with a path greater than after, in order of path. An
	// empty page is the end.
	List(ctx context.Context, after string, limit int) ([]BlobInfo, error)
}

// Conditions are the request headers that decide which part of a blob is sent,
// if any. They are passed on as they came.
type Conditions struct {
	Range, IfRange                                           string
	IfMatch, IfNoneMatch, IfModifiedSince, IfUnmodifiedSince string
	Head                                                     bool // what a GET would be answered, without the body
}

// Blob is what the media service answered: the status (200, 206, 304, 412 or 416),
// the headers that belong to it, and the body.
type Blob struct {
	Status  int
	Headers map[string]string // Content-Length, Content-Range, ETag, Last-Modified, Accept-Ranges, Cache-Control
	Body    io.ReadCloser
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

// Reporter takes down what was spoken. It never fails its caller.
type Reporter interface {
	Record(ctx context.Context, spoken wire.SpeechReport)
}
