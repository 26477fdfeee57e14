// Package usage owns the account of synthesised speech: what a team used, by
// day or month, provider, voice, model or endpoint. Whoever speaks reports it on a
// stream, and a bookkeeper counts every report once.
package usage

import (
	"context"
	"time"
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
	Characters int64
	Cached     int64
	Requests   int64
}

// Plus adds counts up.
func (c Counts) Plus(other Counts) Counts {
	return Counts{c.Characters + other.Characters, c.Cached + other.Cached, c.Requests + other.Requests}
}

// Bucket is the usage of one interval and one group. Start is its first day.
type Bucket struct {
	Start time.Time
	Group string
	Counts
}

// Entry is the usage of one day and one way of speaking.
type Entry struct {
	TeamID, EndpointID, Provider, Voice, Model string
	Day                                        time.Time // any moment of it
	Counts
}

// Store answers what is in the account.
type Store interface {
	// TTSUsage returns the buckets of a query that are not empty, in order of
	// start and group.
	TTSUsage(ctx context.Context, q Query) ([]Bucket, error)
}

// Books is where the account is written.
type Books interface {
	// CountTTSUsage adds those receipts to the account whose ids were never
	// counted, in one transaction that also remembers the ids, and returns how
	// many they were.
	CountTTSUsage(ctx context.Context, receipts []Receipt, now time.Time) (int, error)
	// ForgetReceipts forgets ids that were counted before the moment.
	ForgetReceipts(ctx context.Context, before time.Time) error
}
