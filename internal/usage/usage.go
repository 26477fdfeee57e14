// Package usage owns the account of synthesised speech: what a team used, by
// day or month, provider, voice, model or endpoint.
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

// Bucket is the usage of one interval and one group. Start is its first day.
type Bucket struct {
	Start time.Time
	Group string
	Counts
}

// Entry is the usage of one day and one way of speaking, as it is stored.
type Entry struct {
	TeamID, EndpointID, Provider, Voice, Model string
	Day                                        time.Time
	Counts
}

// Store keeps the account.
type Store interface {
	// TTSUsage returns the buckets of a query that are not empty, in order of
	// start and group.
	TTSUsage(ctx context.Context, q Query) ([]Bucket, error)
	// AddTTSUsage adds all entries to the account in one transaction.
	AddTTSUsage(ctx context.Context, entries []Entry) error
}
