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

// date returns midnight UTC of a day.
func date(day string) time.Time {
	t, err := time.Parse(time.DateOnly, day)
	if err != nil {
		panic(err)
	}
	return t
}

// addNew adds reports, each with a new ID.
func addNew(t *testing.T, s *Store, reports []wire.SpeechReport) error {
	reports = slices.Clone(reports)
	for i := range reports {
		reports[i].ID = uuid.NewString()
	}
	counted, err := s.AddReports(t.Context(), reports, testTime)
	if err == nil && counted != len(reports) {
		err = fmt.Errorf("counted %d reports, want %d", counted, len(reports))
	}
	return err
}

func TestUsageAddsUpByIntervalAndGroup(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		report := func(team, day, endpoint, provider, voice, model string, characters int64, cached bool) wire.SpeechReport {
			return wire.SpeechReport{TeamID: team, EndpointID: endpoint, Provider: provider, Voice: voice, Model: model,
				At: date(day).Add(23 * time.Hour).UnixMilli(), Characters: characters, Cached: cached}
		}
		must(t,
			addNew(t, s, []wire.SpeechReport{
				report("t1", "2026-02-28", "e1", "acme", "Zoe", "m1", 100, false),
				report("t1", "2026-03-01", "e1", "acme", "anna", "m1", 180, false),
				report("t1", "2026-03-01", "e1", "acme", "anna", "m1", 20, true),
				report("t1", "2026-03-01", "e2", "beta", "Zoe", "m2", 300, true),
				report("t1", "2026-03-31", "", "beta", "Zoe", "m2", 400, false),
				report("t1", "2026-04-01", "e1", "acme", "Zoe", "m1", 1<<40, false),
				report("t2", "2026-03-01", "e9", "acme", "Zoe", "m1", 999, false),
			}),
			addNew(t, s, []wire.SpeechReport{report("t1", "2026-03-01", "e1", "acme", "anna", "m1", 1, true)}),
			addNew(t, s, nil))

		noGroup := (*string)(nil)
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
				bucket("2026-03-01", noGroup, 501, 321, 4), bucket("2026-03-31", noGroup, 400, 0, 1)}},
			{"by month", "2026-02-01", "2026-04-30", usage.Month, "", []usage.Bucket{
				bucket("2026-02-01", noGroup, 100, 0, 1), bucket("2026-03-01", noGroup, 901, 321, 5), bucket("2026-04-01", noGroup, 1<<40, 0, 1)}},
			{"by provider", "2026-03-01", "2026-03-31", usage.Month, usage.ByProvider, []usage.Bucket{
				bucket("2026-03-01", new("acme"), 201, 21, 3), bucket("2026-03-01", new("beta"), 700, 300, 2)}},
			{"by voice, capitals first", "2026-03-01", "2026-03-31", usage.Month, usage.ByVoice, []usage.Bucket{
				bucket("2026-03-01", new("Zoe"), 700, 300, 2), bucket("2026-03-01", new("anna"), 201, 21, 3)}},
			{"by model", "2026-03-01", "2026-03-01", usage.Day, usage.ByModel, []usage.Bucket{
				bucket("2026-03-01", new("m1"), 201, 21, 3), bucket("2026-03-01", new("m2"), 300, 300, 1)}},
			{"by endpoint", "2026-03-01", "2026-03-31", usage.Month, usage.ByEndpoint, []usage.Bucket{
				bucket("2026-03-01", new(""), 400, 0, 1), bucket("2026-03-01", new("e1"), 201, 21, 3), bucket("2026-03-01", new("e2"), 300, 300, 1)}},
			{"no usage", "2025-01-01", "2025-12-31", usage.Day, usage.ByVoice, nil},
		} {
			got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: date(tt.from), To: date(tt.to), Interval: tt.interval, GroupBy: tt.group})
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
			}
		}
		for _, q := range []usage.Query{{Interval: "week"}, {Interval: usage.Day, GroupBy: "day; DROP TABLE tts_usage"}} {
			if _, err := s.TTSUsage(t.Context(), q); err == nil {
				t.Errorf("query %+v: no error", q)
			}
		}
	})
}

func TestConcurrentUsageLosesNothing(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		var reports []wire.SpeechReport
		for i := range 20 {
			reports = append(reports, wire.SpeechReport{TeamID: "t1", Voice: fmt.Sprint("v", i), At: date("2026-03-01").UnixMilli(), Characters: 1})
		}
		reversed := slices.Clone(reports)
		slices.Reverse(reversed)
		var wg sync.WaitGroup
		for _, batch := range [][]wire.SpeechReport{reports, reversed, reports, reversed, reports, reversed} {
			wg.Go(func() {
				for range 5 {
					if err := addNew(t, s, batch); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: date("2026-03-01"), To: date("2026-03-01"), Interval: usage.Day})
		if err != nil || len(got) != 1 || got[0].Characters != 600 || got[0].Requests != 600 {
			t.Errorf("usage %+v, %v, want 600 characters and requests", got, err)
		}
	})
}

func TestFailedBatchAddsNoUsage(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		err := addNew(t, s, []wire.SpeechReport{
			{TeamID: "t1", Voice: "a", At: date("2026-03-01").UnixMilli(), Characters: 1},
			{TeamID: "t1", Voice: "b\x00", At: date("2026-03-01").UnixMilli(), Characters: 1},
		})
		if err == nil {
			t.Fatal("a batch with invalid text was accepted")
		}
		got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: date("2026-03-01"), To: date("2026-03-01"), Interval: usage.Day})
		if err != nil || len(got) != 0 {
			t.Errorf("usage %+v, %v, want nothing", got, err)
		}
	})
}

func TestDayIsInUTC(t *testing.T) {
	if got := day(time.Date(2026, 11, 15, 0, 30, 0, 0, time.FixedZone("CET", 60*60))); got != "2026-11-14" {
		t.Errorf("00:30 on 2026-11-15 in Berlin counts for %s, want 2026-11-14", got)
	}
}

func TestReportIsAddedOnce(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		var reports []wire.SpeechReport
		for i := range 300 {
			reports = append(reports, wire.SpeechReport{ID: fmt.Sprintf("%08d", i*7919%300), TeamID: "t1", Voice: fmt.Sprint("v", i%3),
				At: date("2026-03-01").Add(time.Duration(i) * time.Minute).UnixMilli(), Characters: 10, Cached: true})
		}
		var counted atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 { // instances that read overlapping reports in different orders
			wg.Go(func() {
				part := slices.Clone(reports[i*20 : i*20+160])
				slices.Reverse(part[:i*10])
				for range 2 {
					n, err := s.AddReports(t.Context(), append(part, part[0]), testTime)
					if err != nil {
						t.Error(err)
					}
					counted.Add(int64(n))
				}
			})
		}
		wg.Wait()
		got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: date("2026-03-01"), To: date("2026-03-01"), Interval: usage.Day})
		want := usage.Counts{Characters: 3000, Cached: 3000, Requests: 300}
		if err != nil || len(got) != 1 || got[0].Counts != want || counted.Load() != 300 {
			t.Errorf("usage %+v, %v, counted %d reports; want %+v and 300 reports", got, err, counted.Load(), want)
		}
	})
}

func TestOldReportsAreDeleted(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		count := func(id string, at time.Time) int {
			n, err := s.AddReports(t.Context(), []wire.SpeechReport{{ID: id, TeamID: "t1", At: at.UnixMilli(), Characters: 1}}, at)
			must(t, err)
			return n
		}
		count("old", testTime)
		count("new", testTime.Add(time.Hour))
		must(t, s.DeleteReports(t.Context(), testTime.Add(time.Minute)))
		if old, recent := count("old", testTime), count("new", testTime); old != 1 || recent != 0 {
			t.Errorf("after the deletion, the old report counts %d times and the new one %d times; want 1 and 0", old, recent)
		}
	})
}
