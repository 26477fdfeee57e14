package speech_test

import (
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/speech"
	"telapi/test/conformance"
	"telapi/test/sqlite"
	"telapi/test/testkit"
)

// date returns a day of November 2026.
func date(day int) time.Time { return time.Date(2026, 11, day, 0, 0, 0, 0, time.UTC) }

// storeReports returns a store with reports of team tm_1.
func storeReports(t *testing.T, reports ...wire.SpeechReport) speech.UsageStore {
	t.Helper()
	store := sqlite.Open(t, t.TempDir())
	for i := range reports {
		reports[i].ID, reports[i].TeamID = uuid.NewString(), "tm_1"
	}
	if n, err := store.AddReports(t.Context(), reports, date(15)); err != nil || n != len(reports) {
		t.Fatalf("added %d of %d reports: %v", n, len(reports), err)
	}
	return store
}

func TestUsageSummaryJSON(t *testing.T) {
	now := time.Date(2026, 11, 15, 1, 2, 3, 456_789_000, time.FixedZone("CET", 60*60))
	report := func(day int, endpoint string, characters int64, cached bool) wire.SpeechReport {
		return wire.SpeechReport{At: date(day).UnixMilli(), EndpointID: endpoint, Characters: characters, Cached: cached}
	}
	for _, tt := range []struct {
		name    string
		groupBy speech.Property
		reports []wire.SpeechReport
		want    string
	}{
		{"no usage", "", nil,
			`{"teamId":"tm_1","from":"2026-11-01","to":"2026-11-15","interval":"day","asOf":"2026-11-15T00:02:03.456Z",` +
				`"total":{"characters":0,"cachedCharacters":0,"billedCharacters":0,"requests":0},"buckets":[]}`},
		{"by day", "", []wire.SpeechReport{report(1, "", 30, true), report(1, "", 40, false), report(1, "", 20, false), report(1, "", 10, false), report(3, "", 50, true), report(16, "", 1, false)},
			`{"teamId":"tm_1","from":"2026-11-01","to":"2026-11-15","interval":"day","asOf":"2026-11-15T00:02:03.456Z",` +
				`"total":{"characters":150,"cachedCharacters":80,"billedCharacters":70,"requests":5},"buckets":[` +
				`{"start":"2026-11-01","characters":100,"cachedCharacters":30,"billedCharacters":70,"requests":4},` +
				`{"start":"2026-11-03","characters":50,"cachedCharacters":50,"billedCharacters":0,"requests":1}]}`},
		{"by endpoint, one report without endpoint", speech.ByEndpoint, []wire.SpeechReport{report(1, "", 1, false), report(1, "ep_1", 2, false)},
			`{"teamId":"tm_1","from":"2026-11-01","to":"2026-11-15","interval":"day","groupBy":"endpoint","asOf":"2026-11-15T00:02:03.456Z",` +
				`"total":{"characters":3,"cachedCharacters":0,"billedCharacters":3,"requests":2},"buckets":[` +
				`{"start":"2026-11-01","group":"","characters":1,"cachedCharacters":0,"billedCharacters":1,"requests":1},` +
				`{"start":"2026-11-01","group":"ep_1","characters":2,"cachedCharacters":0,"billedCharacters":2,"requests":1}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := speech.UsageQuery{TeamID: "tm_1", From: date(1), To: date(15), Interval: speech.Day, GroupBy: tt.groupBy}
			summary, err := speech.SummarizeUsage(t.Context(), storeReports(t, tt.reports...), q, now)
			testkit.Must(t, err)
			got, err := json.Marshal(summary)
			testkit.Must(t, err)
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestReportFakesConform(t *testing.T) {
	t.Run("ReportStream", func(t *testing.T) {
		stream, timeOut := speech.NewFakeStream()
		conformance.ReportStream(t, stream, timeOut)
	})
	t.Run("ReportStore", func(t *testing.T) { conformance.ReportStore(t, speech.NewFakeReportStore()) })
}
