package usage

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
)

// ledger is a store with buckets to answer with.
type ledger struct {
	asked   Query
	buckets []Bucket
	err     error
}

func (l *ledger) TTSUsage(_ context.Context, q Query) ([]Bucket, error) {
	l.asked = q
	return l.buckets, l.err
}

func day(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }

func TestReportJSON(t *testing.T) {
	now := func() time.Time {
		return time.Date(2026, 11, 15, 1, 2, 3, 456_789_000, time.FixedZone("CET", 60*60))
	}
	for _, tt := range []struct {
		name    string
		groupBy Group
		buckets []Bucket
		want    string
	}{
		{"nothing used", "", nil,
			`{"teamId":"tm_1","from":"2026-11-01","to":"2026-11-15","interval":"day","asOf":"2026-11-15T00:02:03.456Z",` +
				`"total":{"characters":0,"cachedCharacters":0,"billedCharacters":0,"requests":0},"buckets":[]}`},
		{"by day", "", []Bucket{{"2026-11-01", nil, Counts{100, 30, 70, 4}}, {"2026-11-03", nil, Counts{50, 50, 0, 1}}},
			`{"teamId":"tm_1","from":"2026-11-01","to":"2026-11-15","interval":"day","asOf":"2026-11-15T00:02:03.456Z",` +
				`"total":{"characters":150,"cachedCharacters":80,"billedCharacters":70,"requests":5},"buckets":[` +
				`{"start":"2026-11-01","characters":100,"cachedCharacters":30,"billedCharacters":70,"requests":4},` +
				`{"start":"2026-11-03","characters":50,"cachedCharacters":50,"billedCharacters":0,"requests":1}]}`},
		{"by endpoint, one without", ByEndpoint, []Bucket{{"2026-11-01", new(""), Counts{1, 0, 1, 1}}, {"2026-11-01", new("ep_1"), Counts{2, 0, 2, 1}}},
			`{"teamId":"tm_1","from":"2026-11-01","to":"2026-11-15","interval":"day","groupBy":"endpoint","asOf":"2026-11-15T00:02:03.456Z",` +
				`"total":{"characters":3,"cachedCharacters":0,"billedCharacters":3,"requests":2},"buckets":[` +
				`{"start":"2026-11-01","group":"","characters":1,"cachedCharacters":0,"billedCharacters":1,"requests":1},` +
				`{"start":"2026-11-01","group":"ep_1","characters":2,"cachedCharacters":0,"billedCharacters":2,"requests":1}]}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			store := &ledger{buckets: tt.buckets}
			q := Query{TeamID: "tm_1", From: day(1), To: day(15), Interval: Day, GroupBy: tt.groupBy}
			report, err := (&Reporter{store, now}).Report(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if store.asked != q {
				t.Errorf("the store was asked %+v, want %+v", store.asked, q)
			}
			got, err := json.Marshal(report)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestReportReturnsStoreError(t *testing.T) {
	store := &ledger{err: fault.Unavailable("The database", errors.New("refused"))}
	if _, err := (&Reporter{store, time.Now}).Report(t.Context(), Query{}); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("got %v", err)
	}
}
