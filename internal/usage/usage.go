// Package usage owns the account of synthesised speech: what a team used, by
// day or month, provider, voice, model or endpoint. Whoever speaks reports it on a
// stream, and a consumer counts every report once.
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

// Group is what buckets are told apart by, besides time. Empty: time alone.
type Group string

// The groupings of a report.
const (
	ByProvider Group = "provider"
	ByVoice    Group = "voice"
	ByModel    Group = "model"
	ByEndpoint Group = "endpoint"
)

// Query asks for one team's usage. From and To are UTC midnights; To is the
// last day included.
type Query struct {
	TeamID   string
	From, To time.Time
	Interval Interval
	GroupBy  Group
}

// Counts adds up speech requests. Characters are Unicode code points; those
// answered from the media cache are Cached, the others were billed.
type Counts struct {
	Characters int64 `json:"characters"`
	Cached     int64 `json:"cachedCharacters"`
	Billed     int64 `json:"billedCharacters"`
	Requests   int64 `json:"requests"`
}

// Bucket is the usage of one interval, which it names by its first day, and of
// one group.
type Bucket struct {
	Start string  `json:"start"`
	Group *string `json:"group,omitzero"` // nil: not asked for; "": used without one
	Counts
}

// Store answers what is in the account.
type Store interface {
	// TTSUsage returns the buckets of a query that are not empty, in order of
	// start and group.
	TTSUsage(ctx context.Context, q Query) ([]Bucket, error)
}

// ReportStore is where the account is written.
type ReportStore interface {
	// AddReports adds those reports to the account whose ids were never
	// counted, in one transaction that also remembers the ids, and returns how
	// many they were.
	AddReports(ctx context.Context, reports []wire.SpeechReport, now time.Time) (int, error)
	// DeleteReports forgets ids that were counted before the moment.
	DeleteReports(ctx context.Context, before time.Time) error
}
