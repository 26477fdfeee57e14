package usage

import (
	"time"

	"telapi/internal/fault"
)

// maxDays is the longest span of a report: two years.
const maxDays = 732

// ParseQuery parses the query parameters of a report. All are optional. The
// default is the current month by day, in UTC.
func ParseQuery(teamID string, params map[string][]string, now time.Time) (Query, error) {
	var issues fault.Issues
	now = now.UTC()
	today := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, time.UTC)
	q := Query{TeamID: teamID, From: today.AddDate(0, 0, 1-today.Day()), To: today, Interval: Day}

	date := func(name string, into *time.Time) bool {
		s, given := issues.QueryValue(params, name)
		if !given {
			return false
		}
		t, err := time.Parse(time.DateOnly, s)
		if err != nil || t.Year() < 1970 {
			issues.Add("/query/"+name, fault.IssueValue, "Use a date such as 2026-11-15.")
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
		issues.Add("/query/from", fault.IssueValue, "from is after to.")
	case q.To.Sub(q.From) >= maxDays*24*time.Hour:
		issues.Add("/query/from", fault.IssueTooLarge, "A report spans at most %d days.", maxDays)
	}
	if s, given := issues.QueryValue(params, "interval"); given {
		q.Interval = Interval(s)
		fault.CheckOneOf(&issues, "/query/interval", q.Interval, []Interval{Day, Month})
	}
	if s, given := issues.QueryValue(params, "groupBy"); given {
		q.GroupBy = Group(s)
		fault.CheckOneOf(&issues, "/query/groupBy", q.GroupBy, []Group{ByProvider, ByVoice, ByModel, ByEndpoint})
	}
	return q, issues.Err()
}
