package usage

import (
	"context"
	"fmt"
	"time"
)

// Report is a team's usage as the API returns it.
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

// Reporter creates reports.
type Reporter struct {
	Store Store
	Now   func() time.Time
}

// Report returns a team's usage. Its total is the sum of its buckets.
func (r *Reporter) Report(ctx context.Context, q Query) (Report, error) {
	asOf := r.Now().UTC().Truncate(time.Millisecond)
	buckets, err := r.Store.TTSUsage(ctx, q)
	if err != nil {
		return Report{}, fmt.Errorf("report usage: %w", err)
	}
	report := Report{TeamID: q.TeamID, From: q.From.Format(time.DateOnly), To: q.To.Format(time.DateOnly),
		Interval: q.Interval, GroupBy: q.GroupBy, AsOf: asOf, Buckets: buckets}
	for _, b := range buckets {
		report.Total.Characters += b.Characters
		report.Total.Cached += b.Cached
		report.Total.Billed += b.Billed
		report.Total.Requests += b.Requests
	}
	return report, nil
}
