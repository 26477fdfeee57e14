package speech

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

// evening in New York is already the next day, 2026-11-15, in UTC.
var evening = time.Date(2026, 11, 14, 20, 30, 0, 0, time.FixedZone("EST", -5*60*60))

func TestParseQuery(t *testing.T) {
	for _, tt := range []struct {
		name, query, from, to string
		interval              Interval
		groupBy               Property
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
			testkit.Must(t, err)
			q, err := ParseUsageQuery("tm_1", params, evening)
			testkit.Must(t, err)
			testkit.Equal(t, "team", q.TeamID, "tm_1")
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
	queries := map[string]string{ // paths and codes
		"from=2026-11-15&to=2026-11-14":   "from invalid_value",
		"from=2024-01-01&to=2026-01-02":   "from too_large", // one day too long
		"from=1970-01-01&to=9999-12-31":   "from too_large",
		"from=1970-01-01":                 "from too_large",
		"from=1970-01-01&to=x":            "to invalid_value", // the span is not checked
		"from=2026-11-01&from=2026-11-02": "from too_many",
		"from=a&from=b&to=a&to=b&interval=day&interval=day&groupBy=voice&groupBy=voice": "from too_many, to too_many, interval too_many, groupBy too_many",
		"from=x&to=y&interval=z&groupBy=w":                                              "from invalid_value, to invalid_value, interval invalid_value, groupBy invalid_value",
	}
	for name, values := range map[string][]string{
		"from": {
			"", "2026-02-30", "2026-13-01", "2026-1-1", "2026-11-15T00:00:00Z", "2026-11-15%20", "10000-01-01", "-001-01-01", "1969-12-31", "1800000000",
			"2026-11-15'--", "２０２６-11-15", "2026-11-15%00", "%ff", strings.Repeat("2", 1<<20),
		},
		"to":       {"today", "2026-02-29"},
		"interval": {"week", "", "DAY"},
		"groupBy":  {"team", "", "voice,model", "voice;drop%20table"},
	} {
		for _, value := range values {
			queries[name+"="+value] = name + " invalid_value"
		}
	}
	for query, want := range queries {
		// url.ParseQuery rejects the semicolon of a test case.
		params := map[string][]string{}
		for pair := range strings.SplitSeq(query, "&") {
			name, value, _ := strings.Cut(pair, "=")
			value, err := url.QueryUnescape(value)
			testkit.Must(t, err)
			params[name] = append(params[name], value)
		}
		_, err := ParseUsageQuery("tm_1", params, evening)
		e := fault.From(err)
		issues, _ := e.Details.([]fault.Issue)
		var got []string
		for _, issue := range issues {
			got = append(got, strings.TrimPrefix(issue.Path, "/query/")+" "+issue.Code)
			if len(issue.Message) > 200 {
				t.Errorf("%.80s: message of %d characters repeats the value, want at most 200", query, len(issue.Message))
			}
		}
		if e.Code != fault.Validation || strings.Join(got, ", ") != want {
			t.Errorf("%.80s: error %v with issues %v, want %v with %v", query, e.Code, got, fault.Validation, want)
		}
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add("from=2026-11-01&to=2026-11-15&interval=day&groupBy=voice")
	f.Add("from=&to=&interval=&groupBy=")
	f.Add("from=1970-01-01&to=9999-12-31")
	f.Add("to=1970-01-01")
	f.Fuzz(func(t *testing.T, raw string) {
		params, _ := url.ParseQuery(raw)
		q, err := ParseUsageQuery("tm_1", params, evening)
		if err != nil {
			if issues, _ := fault.From(err).Details.([]fault.Issue); !fault.Is(err, fault.Validation) || len(issues) == 0 {
				t.Fatalf("%q: error %v, want a validation error with issues", raw, err)
			}
			return
		}
		if q.TeamID != "tm_1" || q.From.After(q.To) || q.To.Sub(q.From) >= maxDays*24*time.Hour ||
			!slices.Contains([]Interval{Day, Month}, q.Interval) || (q.GroupBy != "" && !slices.Contains([]Property{ByProvider, ByVoice, ByModel, ByEndpoint}, q.GroupBy)) {
			t.Fatalf("%q: accepted an invalid query: %+v", raw, q)
		}
		for _, day := range []time.Time{q.From, q.To} {
			if day.Location() != time.UTC || !day.Equal(day.Truncate(24*time.Hour)) {
				t.Fatalf("%q: day %v, want a UTC midnight", raw, day)
			}
		}
	})
}
