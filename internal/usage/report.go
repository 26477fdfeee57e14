package usage

import (
	"context"
	"fmt"
	"time"
)

// Report is a team's usage as the API shows it.
type Report struct {
	TeamID   string         `json:"teamId"`
	From     string         `json:"from"`
	To       string         `json:"to"`
	Interval Interval       `json:"interval"`
	GroupBy  Group          `json:"groupBy,omitzero"`
	AsOf     time.Time      `json:"asOf"`
	Total    Figures        `json:"total"`
	Buckets  []ReportBucket `json:"buckets"`
}

// Figures are the sums of one bucket or of the whole report.
type Figures struct {
	Characters       int64 `json:"characters"`
	CachedCharacters int64 `json:"cachedCharacters"`
	BilledCharacters int64 `json:"billedCharacters"`
	Requests         int64 `json:"requests"`
}

// ReportBucket is one interval, and one group where groups were asked for.
type ReportBucket struct {
	Start string  `json:"start"`
	Group *string `json:"group,omitzero"` // nil: not asked for; "": used without one
	Figures
}

func figures(c Counts) Figures {
	return Figures{
		Characters:       c.Characters,
		CachedCharacters: c.Cached,
		BilledCharacters: c.Characters - c.Cached,
		Requests:         c.Requests,
	}
}

// Accounts answers what teams used.
type Accounts struct {
	store Store
	now   func() time.Time
}

// NewAccounts returns accounts on the given store.
func NewAccounts(store Store, now func() time.Time) *Accounts {
	return &Accounts{store: store, now: now}
}

// Report adds up a team's usage. The total is the sum of the buckets, so the
// two can never disagree.
func (a *Accounts) Report(ctx context.Context, q Query) (Report, error) {
	asOf := a.now().UTC()
	buckets, err := a.store.TTSUsage(ctx, q)
	if err != nil {
		return Report{}, fmt.Errorf("report usage: %w", err)
	}
	r := Report{
		TeamID:   q.TeamID,
		From:     q.From.Format(dateForm),
		To:       q.To.Format(dateForm),
		Interval: q.Interval,
		GroupBy:  q.GroupBy,
		AsOf:     asOf.Truncate(time.Millisecond),
		Buckets:  make([]ReportBucket, 0, len(buckets)),
	}
	var total Counts
	for _, b := range buckets {
		total = total.Plus(b.Counts)
		rb := ReportBucket{Start: b.Start.Format(dateForm), Figures: figures(b.Counts)}
		if q.GroupBy != "" {
			rb.Group = &b.Group
		}
		r.Buckets = append(r.Buckets, rb)
	}
	r.Total = figures(total)
	return r, nil
}
