package usage

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/internal/fault"
)

// evening in New York is already the next day, 2026-11-15, in UTC.
var evening = time.Date(2026, 11, 14, 20, 30, 0, 0, time.FixedZone("EST", -5*60*60))

func TestParseQuery(t *testing.T) {
	for _, tt := range []struct {
		name, query, from, to string
		interval              Interval
		groupBy               Group
	}{
		{"no parameters: current month by day", "", "2026-11-01", "2026-11-15", Day, ""},
		{"only from: until today", "from=2026-10-20", "2026-10-20", "2026-11-15", Day, ""},
		{"only from, in the future: one day", "from=2027-01-02", "2027-01-02", "2027-01-02", Day, ""},
		{"only to: from the first of its month", "to=2026-02-28", "2026-02-01", "2026-02-28", Day, ""},
		{"only to, on the first of a month", "to=2026-02-01", "2026-02-01", "2026-02-01", Day, ""},
		{"one day", "from=2026-11-15&to=2026-11-15", "2026-11-15", "2026-11-15", Day, ""},
		{"leap day", "from=2028-02-29&to=2028-02-29", "2028-02-29", "2028-02-29", Day, ""},
		{"longest span", "from=2024-01-01&to=2026-01-01", "2024-01-01", "2026-01-01", Day, ""},
		{"first valid day", "from=1970-01-01&to=1970-01-01", "1970-01-01", "1970-01-01", Day, ""},
		{"last valid day", "to=9999-12-31", "9999-12-01", "9999-12-31", Day, ""},
		{"by month", "interval=month", "2026-11-01", "2026-11-15", Month, ""},
		{"by provider", "groupBy=provider", "2026-11-01", "2026-11-15", Day, ByProvider},
		{"by voice", "groupBy=voice", "2026-11-01", "2026-11-15", Day, ByVoice},
		{"by model", "groupBy=model", "2026-11-01", "2026-11-15", Day, ByModel},
		{"by endpoint", "groupBy=endpoint&interval=day", "2026-11-01", "2026-11-15", Day, ByEndpoint},
		{"unknown parameters are ignored", "team=tm_2&teamId=tm_2&FROM=x", "2026-11-01", "2026-11-15", Day, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			params, err := url.ParseQuery(tt.query)
			if err != nil {
				t.Fatal(err)
			}
			q, err := ParseQuery("tm_1", params, evening)
			if err != nil {
				t.Fatal(err)
			}
			if q.TeamID != "tm_1" {
				t.Errorf("team %q, want the caller's team tm_1", q.TeamID)
			}
			if from, to := q.From.Format(time.DateOnly), q.To.Format(time.DateOnly); from != tt.from || to != tt.to {
				t.Errorf("from %s to %s, want %s to %s", from, to, tt.from, tt.to)
			}
			if q.Interval != tt.interval || q.GroupBy != tt.groupBy {
				t.Errorf("interval %q, group %q; want %q, %q", q.Interval, q.GroupBy, tt.interval, tt.groupBy)
			}
		})
	}
}

func TestParseQueryReportsAllIssues(t *testing.T) {
	for _, tt := range []struct {
		name, query string
		want        []string // path and code
	}{
		{"empty day", "from=", []string{"/query/from invalid_value"}},
		{"word instead of a date", "to=today", []string{"/query/to invalid_value"}},
		{"February 30", "from=2026-02-30", []string{"/query/from invalid_value"}},
		{"February 29 of a common year", "to=2026-02-29", []string{"/query/to invalid_value"}},
		{"month 13", "from=2026-13-01", []string{"/query/from invalid_value"}},
		{"short form", "from=2026-1-1", []string{"/query/from invalid_value"}},
		{"with a time", "from=2026-11-15T00:00:00Z", []string{"/query/from invalid_value"}},
		{"with a space", "from=2026-11-15%20", []string{"/query/from invalid_value"}},
		{"five-digit year", "from=10000-01-01", []string{"/query/from invalid_value"}},
		{"negative year", "from=-001-01-01", []string{"/query/from invalid_value"}},
		{"before 1970", "from=1969-12-31", []string{"/query/from invalid_value"}},
		{"Unix time", "from=1800000000", []string{"/query/from invalid_value"}},
		{"SQL", "from=2026-11-15'--", []string{"/query/from invalid_value"}},
		{"full-width digits", "from=２０２６-11-15", []string{"/query/from invalid_value"}},
		{"NUL", "from=2026-11-15%00", []string{"/query/from invalid_value"}},
		{"not UTF-8", "from=%ff", []string{"/query/from invalid_value"}},
		{"value of 1 MiB", "from=" + strings.Repeat("2", 1<<20), []string{"/query/from invalid_value"}},
		{"from after to", "from=2026-11-15&to=2026-11-14", []string{"/query/from invalid_value"}},
		{"one day too long", "from=2024-01-01&to=2026-01-02", []string{"/query/from too_large"}},
		{"longest possible span", "from=1970-01-01&to=9999-12-31", []string{"/query/from too_large"}},
		{"only from, long ago", "from=1970-01-01", []string{"/query/from too_large"}},
		{"parameter repeated", "from=2026-11-01&from=2026-11-02", []string{"/query/from too_many"}},
		{"all parameters repeated", "from=a&from=b&to=a&to=b&interval=day&interval=day&groupBy=voice&groupBy=voice",
			[]string{"/query/from too_many", "/query/to too_many", "/query/interval too_many", "/query/groupBy too_many"}},
		{"unknown interval", "interval=week", []string{"/query/interval invalid_value"}},
		{"empty interval", "interval=", []string{"/query/interval invalid_value"}},
		{"interval in capitals", "interval=DAY", []string{"/query/interval invalid_value"}},
		{"unknown group", "groupBy=team", []string{"/query/groupBy invalid_value"}},
		{"empty group", "groupBy=", []string{"/query/groupBy invalid_value"}},
		{"two groups in one value", "groupBy=voice,model", []string{"/query/groupBy invalid_value"}},
		{"group is SQL", "groupBy=voice;drop%20table", []string{"/query/groupBy invalid_value"}},
		{"all parameters invalid", "from=x&to=y&interval=z&groupBy=w",
			[]string{"/query/from invalid_value", "/query/to invalid_value", "/query/interval invalid_value", "/query/groupBy invalid_value"}},
		{"invalid to: span is not checked", "from=1970-01-01&to=x", []string{"/query/to invalid_value"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// url.ParseQuery rejects the semicolon of a test case.
			params := map[string][]string{}
			for pair := range strings.SplitSeq(tt.query, "&") {
				name, value, _ := strings.Cut(pair, "=")
				value, err := url.QueryUnescape(value)
				if err != nil {
					t.Fatal(err)
				}
				params[name] = append(params[name], value)
			}
			_, err := ParseQuery("tm_1", params, evening)
			e := fault.From(err)
			issues, _ := e.Details.([]fault.Issue)
			var got []string
			for _, issue := range issues {
				got = append(got, issue.Path+" "+issue.Code)
				if len(issue.Message) > 200 {
					t.Errorf("message of %d characters repeats the value, want at most 200", len(issue.Message))
				}
			}
			if e.Code != fault.Validation || !slices.Equal(got, tt.want) {
				t.Errorf("error %v with issues %v, want %v with %v", e.Code, got, fault.Validation, tt.want)
			}
		})
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add("from=2026-11-01&to=2026-11-15&interval=day&groupBy=voice")
	f.Add("from=&to=&interval=&groupBy=")
	f.Add("from=1970-01-01&to=9999-12-31")
	f.Add("to=1970-01-01")
	f.Fuzz(func(t *testing.T, raw string) {
		params, _ := url.ParseQuery(raw)
		q, err := ParseQuery("tm_1", params, evening)
		if err != nil {
			if issues, _ := fault.From(err).Details.([]fault.Issue); !fault.Is(err, fault.Validation) || len(issues) == 0 {
				t.Fatalf("%q: error %v, want a validation error with issues", raw, err)
			}
			return
		}
		if q.TeamID != "tm_1" || q.From.After(q.To) || q.To.Sub(q.From) >= maxDays*24*time.Hour ||
			!slices.Contains([]Interval{Day, Month}, q.Interval) || (q.GroupBy != "" && !slices.Contains([]Group{ByProvider, ByVoice, ByModel, ByEndpoint}, q.GroupBy)) {
			t.Fatalf("%q: accepted an invalid query: %+v", raw, q)
		}
		for _, day := range []time.Time{q.From, q.To} {
			if day.Location() != time.UTC || !day.Equal(day.Truncate(24*time.Hour)) {
				t.Fatalf("%q: day %v, want a UTC midnight", raw, day)
			}
		}
	})
}
