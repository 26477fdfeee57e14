// Package usage accounts for synthesized speech per team and day, provider,
// voice, model and endpoint. The server and call runtimes send reports to a
// stream. A Consumer counts every report once.
package usage

import (
	"context"
	"time"

	"telapi/callruntime/wire"
)

// Interval is the length of a bucket.
type Interval string

// The intervals of a report.
const (
	Day   Interval = "day"
	Month Interval = "month"
)

// Group is the property that distinguishes buckets of the same interval. Empty:
// none.
type Group string

// The groups of a report.
const (
	ByProvider Group = "provider"
	ByVoice    Group = "voice"
	ByModel    Group = "model"
	ByEndpoint Group = "endpoint"
)

// Query selects a team's usage. From and To are UTC midnights. To is the last
// day included.
type Query struct {
	TeamID   string
	From, To time.Time
	Interval Interval
	GroupBy  Group
}

// Counts are sums over speech requests. Characters are Unicode code points. Cached
// characters were served from the media cache, the others were billed.
type Counts struct {
	Characters int64 `json:"characters"`
	Cached     int64 `json:"cachedCharacters"`
	Billed     int64 `json:"billedCharacters"`
	Requests   int64 `json:"requests"`
}

// Bucket is the usage of one group in one interval. Start is the first day of the
// interval.
type Bucket struct {
	Start string  `json:"start"`
	Group *string `json:"group,omitzero"` // nil: not grouped; "": used without the property
	Counts
}

// Store reads usage.
type Store interface {
	// TTSUsage returns the non-empty buckets, ordered by start and group.
	TTSUsage(ctx context.Context, q Query) ([]Bucket, error)
}

// ReportStore writes usage.
type ReportStore interface {
	// AddReports adds the reports whose IDs are new and returns their number. It
	// stores the IDs in the same transaction.
	AddReports(ctx context.Context, reports []wire.SpeechReport, now time.Time) (int, error)
	// DeleteReports deletes the IDs of reports that were added before a time.
	DeleteReports(ctx context.Context, before time.Time) error
}

// ReportEntry is a report on the stream.
type ReportEntry struct {
	ID     string
	Report []byte
}

// Stream holds the reports of all instances until they are counted.
type Stream interface {
	// Append adds reports.
	Append(ctx context.Context, reports ...[]byte) error
	// Read returns at most limit entries: those that another consumer read and
	// did not acknowledge for a while, or else new ones. It waits for an entry.
	Read(ctx context.Context, limit int, wait time.Duration) ([]ReportEntry, error)
	// Ack removes entries.
	Ack(ctx context.Context, entries []ReportEntry) error
	// Reject moves an entry to the list of rejected reports.
	Reject(ctx context.Context, entry ReportEntry, reason string) error
	// Len returns the number of entries.
	Len(ctx context.Context) (int64, error)
}
