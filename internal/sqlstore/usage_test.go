package sqlstore

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/usage"
)

func on(day string) time.Time {
	t, err := time.Parse(time.DateOnly, day)
	if err != nil {
		panic(err)
	}
	return t
}

// add adds reports, each with a new ID.
func add(t *testing.T, s *Store, reports []wire.SpeechReport) error {
	reports = slices.Clone(reports)
	for i := range reports {
		reports[i].ID = uuid.NewString()
	}
	counted, err := s.AddReports(t.Context(), reports, moment1)
	if err == nil && counted != len(reports) {
		err = fmt.Errorf("%d of %d were counted", counted, len(reports))
	}
	return err
}

func TestUsageAddsUpByIntervalAndGroup(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		spoken := func(team, day, endpoint, provider, voice, model string, characters int64, cached bool) wire.SpeechReport {
			return wire.SpeechReport{TeamID: team, EndpointID: endpoint, Provider: provider, Voice: voice, Model: model,
				At: on(day).Add(23 * time.Hour).UnixMilli(), Characters: characters, Cached: cached}
		}
		must(t,
			add(t, s, []wire.SpeechReport{
				spoken("t1", "2026-02-28", "e1", "acme", "Zoe", "m1", 100, false),
				spoken("t1", "2026-03-01", "e1", "acme", "anna", "m1", 180, false),
				spoken("t1", "2026-03-01", "e1", "acme", "anna", "m1", 20, true),
				spoken("t1", "2026-03-01", "e2", "beta", "Zoe", "m2", 300, true),
				spoken("t1", "2026-03-31", "", "beta", "Zoe", "m2", 400, false),
				spoken("t1", "2026-04-01", "e1", "acme", "Zoe", "m1", 1<<40, false),
				spoken("t2", "2026-03-01", "e9", "acme", "Zoe", "m1", 999, false),
			}),
			add(t, s, []wire.SpeechReport{spoken("t1", "2026-03-01", "e1", "acme", "anna", "m1", 1, true)}),
			add(t, s, nil))

		none := (*string)(nil)
		bucket := func(start string, group *string, characters, cached, requests int64) usage.Bucket {
			return usage.Bucket{Start: start, Group: group, Counts: usage.Counts{Characters: characters, Cached: cached, Billed: characters - cached, Requests: requests}}
		}
		for _, tt := range []struct {
			name     string
			from, to string
			interval usage.Interval
			group    usage.Group
			want     []usage.Bucket
		}{
			{"by day", "2026-03-01", "2026-03-31", usage.Day, "", []usage.Bucket{
				bucket("2026-03-01", none, 501, 321, 4), bucket("2026-03-31", none, 400, 0, 1)}},
			{"by month", "2026-02-01", "2026-04-30", usage.Month, "", []usage.Bucket{
				bucket("2026-02-01", none, 100, 0, 1), bucket("2026-03-01", none, 901, 321, 5), bucket("2026-04-01", none, 1<<40, 0, 1)}},
			{"by provider", "2026-03-01", "2026-03-31", usage.Month, usage.ByProvider, []usage.Bucket{
				bucket("2026-03-01", new("acme"), 201, 21, 3), bucket("2026-03-01", new("beta"), 700, 300, 2)}},
			{"by voice, capitals first", "2026-03-01", "2026-03-31", usage.Month, usage.ByVoice, []usage.Bucket{
				bucket("2026-03-01", new("Zoe"), 700, 300, 2), bucket("2026-03-01", new("anna"), 201, 21, 3)}},
			{"by model", "2026-03-01", "2026-03-01", usage.Day, usage.ByModel, []usage.Bucket{
				bucket("2026-03-01", new("m1"), 201, 21, 3), bucket("2026-03-01", new("m2"), 300, 300, 1)}},
			{"by endpoint", "2026-03-01", "2026-03-31", usage.Month, usage.ByEndpoint, []usage.Bucket{
				bucket("2026-03-01", new(""), 400, 0, 1), bucket("2026-03-01", new("e1"), 201, 21, 3), bucket("2026-03-01", new("e2"), 300, 300, 1)}},
			{"nothing used", "2025-01-01", "2025-12-31", usage.Day, usage.ByVoice, nil},
		} {
			got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: on(tt.from), To: on(tt.to), Interval: tt.interval, GroupBy: tt.group})
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
			}
		}
		for _, q := range []usage.Query{{Interval: "week"}, {Interval: usage.Day, GroupBy: "day; DROP TABLE tts_usage"}} {
			if _, err := s.TTSUsage(t.Context(), q); err == nil {
				t.Errorf("query %+v was answered", q)
			}
		}
	})
}

func TestConcurrentUsageLosesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		var entries []wire.SpeechReport
		for i := range 20 {
			entries = append(entries, wire.SpeechReport{TeamID: "t1", Voice: fmt.Sprint("v", i), At: on("2026-03-01").UnixMilli(), Characters: 1})
		}
		backwards := slices.Clone(entries)
		slices.Reverse(backwards)
		var wg sync.WaitGroup
		for _, batch := range [][]wire.SpeechReport{entries, backwards, entries, backwards, entries, backwards} {
			wg.Go(func() {
				for range 5 {
					if err := add(t, s, batch); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: on("2026-03-01"), To: on("2026-03-01"), Interval: usage.Day})
		if err != nil || len(got) != 1 || got[0].Characters != 600 || got[0].Requests != 600 {
			t.Errorf("usage %+v, %v, want 600 characters and requests", got, err)
		}
	})
}

func TestFailedBatchAddsNoUsage(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		err := add(t, s, []wire.SpeechReport{
			{TeamID: "t1", Voice: "a", At: on("2026-03-01").UnixMilli(), Characters: 1},
			{TeamID: "t1", Voice: "b\x00", At: on("2026-03-01").UnixMilli(), Characters: 1},
		})
		if err == nil {
			t.Fatal("a batch with text no database can hold was accepted")
		}
		got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: on("2026-03-01"), To: on("2026-03-01"), Interval: usage.Day})
		if err != nil || len(got) != 0 {
			t.Errorf("usage %+v, %v, want nothing", got, err)
		}
	})
}

func TestDayIsInUTC(t *testing.T) {
	if got := day(time.Date(2026, 11, 15, 0, 30, 0, 0, time.FixedZone("CET", 60*60))); got != "2026-11-14" {
		t.Errorf("half past midnight in Berlin is on %s", got)
	}
}

func TestReportIsAddedOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		var reports []wire.SpeechReport
		for i := range 300 {
			reports = append(reports, wire.SpeechReport{ID: fmt.Sprintf("%08d", i*7919%300), TeamID: "t1", Voice: fmt.Sprint("v", i%3),
				At: on("2026-03-01").Add(time.Duration(i) * time.Minute).UnixMilli(), Characters: 10, Cached: true})
		}
		var counted atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 { // instances that were delivered overlapping parts, in some order
			wg.Go(func() {
				part := slices.Clone(reports[i*20 : i*20+160])
				slices.Reverse(part[:i*10])
				for range 2 {
					n, err := s.AddReports(t.Context(), append(part, part[0]), moment1)
					if err != nil {
						t.Error(err)
					}
					counted.Add(int64(n))
				}
			})
		}
		wg.Wait()
		got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: on("2026-03-01"), To: on("2026-03-01"), Interval: usage.Day})
		want := usage.Counts{Characters: 3000, Cached: 3000, Requests: 300}
		if err != nil || len(got) != 1 || got[0].Counts != want || counted.Load() != 300 {
			t.Errorf("%+v, %v, %d counted; want %+v", got, err, counted.Load(), want)
		}
	})
}

func TestOldReportsAreDeleted(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		count := func(id string, at time.Time) int {
			n, err := s.AddReports(t.Context(), []wire.SpeechReport{{ID: id, TeamID: "t1", At: at.UnixMilli(), Characters: 1}}, at)
			must(t, err)
			return n
		}
		count("old", moment1)
		count("new", moment1.Add(time.Hour))
		must(t, s.DeleteReports(t.Context(), moment1.Add(time.Minute)))
		if count("old", moment1) != 1 || count("new", moment1) != 0 {
			t.Error("the wrong one was forgotten")
		}
	})
}
