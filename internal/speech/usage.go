package speech

import (
	"context"
	"fmt"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// Interval is the length of a bucket.
type Interval string

// The intervals of a summary.
const (
	Day   Interval = "day"
	Month Interval = "month"
)

// Intervals lists all intervals.
var Intervals = []Interval{Day, Month}

// Property is a property of speech requests by which usage is grouped; empty for no
// grouping.
type Property string

// The properties by which a summary can be grouped.
const (
	ByProvider Property = "provider"
	ByVoice    Property = "voice"
	ByModel    Property = "model"
	ByEndpoint Property = "endpoint"
)

// Properties lists all properties.
var Properties = []Property{ByProvider, ByVoice, ByModel, ByEndpoint}

// UsageQuery selects a team's usage from the day From to the day To, inclusive. Both
// are midnights in UTC.
type UsageQuery struct {
	TeamID   string
	From, To time.Time
	Interval Interval
	GroupBy  Property
}

// UsageCounts are sums over speech requests. Characters are Unicode code points. Those
// of speech from the media cache are Cached, all others Billed.
type UsageCounts struct {
	Characters int64 `json:"characters"`
	Cached     int64 `json:"cachedCharacters"`
	Billed     int64 `json:"billedCharacters"`
	Requests   int64 `json:"requests"`
}

// UsageBucket is the usage of one group in one interval. Start is the first day of the
// interval.
type UsageBucket struct {
	Start string  `json:"start"`
	Group *string `json:"group,omitzero"` // nil if not grouped; "" for requests without the property
	UsageCounts
}

// UsageStore reads usage.
type UsageStore interface {
	// UsageBuckets returns the non-empty buckets, ordered by start and group.
	UsageBuckets(ctx context.Context, q UsageQuery) ([]UsageBucket, error)
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

// ReportStream holds the reports of all instances until they are counted.
type ReportStream interface {
	// Append adds reports.
	Append(ctx context.Context, reports ...[]byte) error
	// Read returns at most limit entries. It returns entries that another consumer
	// has read but not acknowledged for some time, or else new ones. If there are
	// none, it waits up to wait for one, and then returns no entries and no error.
	Read(ctx context.Context, limit int, wait time.Duration) ([]ReportEntry, error)
	// Ack removes entries.
	Ack(ctx context.Context, entries []ReportEntry) error
	// Reject moves an entry to the list of rejected reports.
	Reject(ctx context.Context, entry ReportEntry, reason string) error
	// Len returns the number of entries.
	Len(ctx context.Context) (int64, error)
}

// UsageSummary is a team's usage over a period, as the API returns it.
type UsageSummary struct {
	TeamID   string        `json:"teamId"`
	From     string        `json:"from"`
	To       string        `json:"to"`
	Interval Interval      `json:"interval"`
	GroupBy  Property      `json:"groupBy,omitzero"`
	AsOf     time.Time     `json:"asOf"`
	Total    UsageCounts   `json:"total"`
	Buckets  []UsageBucket `json:"buckets"`
}

// SummarizeUsage returns a team's usage. Its total is the sum of its buckets.
func SummarizeUsage(ctx context.Context, store UsageStore, q UsageQuery, now time.Time) (UsageSummary, error) {
	buckets, err := store.UsageBuckets(ctx, q)
	if err != nil {
		return UsageSummary{}, fmt.Errorf("summarize usage: %w", err)
	}
	summary := UsageSummary{TeamID: q.TeamID, From: q.From.Format(time.DateOnly), To: q.To.Format(time.DateOnly),
		Interval: q.Interval, GroupBy: q.GroupBy, AsOf: now.UTC().Truncate(time.Millisecond), Buckets: buckets}
	for _, b := range buckets {
		summary.Total.Characters += b.Characters
		summary.Total.Cached += b.Cached
		summary.Total.Billed += b.Billed
		summary.Total.Requests += b.Requests
	}
	return summary, nil
}

// maxDays is the maximum length of a summary's period: two years, with two leap days.
const maxDays = 2 * 366

// ParseUsageQuery parses the query parameters of a summary. All are optional. Without
// any, the query selects the current month, by day. With to alone, it starts on the first of
// that month; with from alone, it ends today, or on from if that is in the future.
func ParseUsageQuery(teamID string, params map[string][]string, now time.Time) (UsageQuery, error) {
	var issues fault.Issues
	now = now.UTC()
	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	q := UsageQuery{TeamID: teamID, From: today.AddDate(0, 0, 1-today.Day()), To: today, Interval: Day}

	date := func(name string, into *time.Time) bool {
		s, given := issues.QueryValue(params, name)
		if !given {
			return false
		}
		t, err := time.Parse(time.DateOnly, s)
		if err != nil || t.Year() < 1970 {
			issues.Add("/query/"+name, fault.IssueValue, "Use a date from 1970-01-01 on, such as 2026-11-15.")
			return false
		}
		*into = t
		return true
	}

	fromGiven, toGiven := date("from", &q.From), date("to", &q.To)
	switch {
	case toGiven && !fromGiven:
		q.From = q.To.AddDate(0, 0, 1-q.To.Day())
	case fromGiven && !toGiven && q.From.After(today):
		q.To = q.From
	}
	switch {
	case len(issues.List()) > 0: // an invalid date
	case q.From.After(q.To):
		issues.Add("/query/from", fault.IssueValue, "from must not be after to.")
	case q.To.Sub(q.From) >= maxDays*24*time.Hour:
		issues.Add("/query/from", fault.IssueTooLarge, "The period must have at most %d days.", maxDays)
	}
	if s, given := issues.QueryValue(params, "interval"); given {
		q.Interval = Interval(s)
		fault.CheckOneOf(&issues, "/query/interval", q.Interval, Intervals)
	}
	if s, given := issues.QueryValue(params, "groupBy"); given {
		q.GroupBy = Property(s)
		fault.CheckOneOf(&issues, "/query/groupBy", q.GroupBy, Properties)
	}
	return q, issues.Err()
}
