package usage

import (
	"context"
	"fmt"
	"time"
)

// Report is a team's usage as the API shows it.
type Report struct {
	TeamID   string    `json:"teamId"`
	From     string    `json:"from"`
	To       string    `json:"to"`
	Interval Interval  `json:"interval"`
	GroupBy  Group     `json:"groupBy,omitzero"`
	AsOf     time.Time `json:"asOf"`
	Total    Counts    `json:"total"`
	Buckets  []Bucket  `json:"buckets"`
}

// Reporter answers what teams used.
type Reporter struct {
	Store Store
	Now   func() time.Time
}

// Report adds up a team's usage. The total is the sum of the buckets, so the
// two can never disagree.
func (a *Reporter) Report(ctx context.Context, q Query) (Report, error) {
	asOf := a.Now().UTC()
	buckets, err := a.Store.TTSUsage(ctx, q)
	if err != nil {
		return Report{}, fmt.Errorf("report usage: %w", err)
	}
	r := Report{
		TeamID: q.TeamID, From: q.From.Format(dateForm), To: q.To.Format(dateForm), Interval: q.Interval, GroupBy: q.GroupBy,
		AsOf: asOf.Truncate(time.Millisecond), Buckets: buckets,
	}
	for _, b := range buckets {
		r.Total.Characters += b.Characters
		r.Total.Cached += b.Cached
		r.Total.Billed += b.Billed
		r.Total.Requests += b.Requests
	}
	return r, nil
}
