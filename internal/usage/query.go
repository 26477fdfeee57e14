package usage

import (
	"time"

	"telapi/internal/fault"
)

const (
	dateForm = time.DateOnly
	// maxDays bounds a report; two years by day is more than a console shows.
	maxDays = 732
)

// ParseQuery reads the report's parameters. All are optional: the default is
// the current month by day, in UTC.
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
		t, err := time.Parse(dateForm, s)
		if err != nil || t.Year() < 1970 {
			issues.Add("/query/"+name, fault.IssueValue, "%s is a day such as 2026-11-15.", name)
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
	case len(issues.List()) > 0: // a day that cannot be read says nothing about the span
	case q.From.After(q.To):
		issues.Add("/query/from", fault.IssueValue, "from lies after to.")
	case q.To.Sub(q.From) >= maxDays*24*time.Hour:
		issues.Add("/query/from", fault.IssueTooLarge, "A report spans %d days at the most.", maxDays)
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
