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

	"telapi/internal/usage"
)

func on(day string) time.Time {
	t, err := time.Parse(time.DateOnly, day)
	if err != nil {
		panic(err)
	}
	return t
}

// add counts entries, each under an id of its own.
func add(t *testing.T, s *Store, entries []usage.Entry) error {
	var receipts []usage.Receipt
	for _, e := range entries {
		receipts = append(receipts, usage.Receipt{ID: uuid.NewString(), Entry: e})
	}
	counted, err := s.CountTTSUsage(t.Context(), receipts, moment1)
	if err == nil && counted != len(entries) {
		err = fmt.Errorf("%d of %d were counted", counted, len(entries))
	}
	return err
}

func TestUsageAddsUpByIntervalAndGroup(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		entry := func(team, day, endpoint, provider, voice, model string, characters, cached, requests int64) usage.Entry {
			return usage.Entry{TeamID: team, EndpointID: endpoint, Provider: provider, Voice: voice, Model: model, Day: on(day),
				Counts: usage.Counts{Characters: characters, Cached: cached, Requests: requests}}
		}
		must(t,
			add(t, s, []usage.Entry{
				entry("t1", "2026-02-28", "e1", "acme", "Zoe", "m1", 100, 10, 1),
				entry("t1", "2026-03-01", "e1", "acme", "anna", "m1", 200, 20, 2),
				entry("t1", "2026-03-01", "e2", "beta", "Zoe", "m2", 300, 30, 3),
				entry("t1", "2026-03-31", "", "beta", "Zoe", "m2", 400, 40, 4),
				entry("t1", "2026-04-01", "e1", "acme", "Zoe", "m1", 1<<40, 0, 5),
				entry("t2", "2026-03-01", "e9", "acme", "Zoe", "m1", 999, 9, 9),
			}),
			add(t, s, []usage.Entry{entry("t1", "2026-03-01", "e1", "acme", "anna", "m1", 1, 1, 1)}),
			add(t, s, nil))

		bucket := func(start, group string, characters, cached, requests int64) usage.Bucket {
			return usage.Bucket{Start: on(start), Group: group, Counts: usage.Counts{Characters: characters, Cached: cached, Requests: requests}}
		}
		for _, tt := range []struct {
			name     string
			from, to string
			interval usage.Interval
			group    usage.Group
			want     []usage.Bucket
		}{
			{"by day", "2026-03-01", "2026-03-31", usage.Day, "", []usage.Bucket{
				bucket("2026-03-01", "", 501, 51, 6), bucket("2026-03-31", "", 400, 40, 4)}},
			{"by month", "2026-02-01", "2026-04-30", usage.Month, "", []usage.Bucket{
				bucket("2026-02-01", "", 100, 10, 1), bucket("2026-03-01", "", 901, 91, 10), bucket("2026-04-01", "", 1<<40, 0, 5)}},
			{"by provider", "2026-03-01", "2026-03-31", usage.Month, usage.ByProvider, []usage.Bucket{
				bucket("2026-03-01", "acme", 201, 21, 3), bucket("2026-03-01", "beta", 700, 70, 7)}},
			{"by voice, capitals first", "2026-03-01", "2026-03-31", usage.Month, usage.ByVoice, []usage.Bucket{
				bucket("2026-03-01", "Zoe", 700, 70, 7), bucket("2026-03-01", "anna", 201, 21, 3)}},
			{"by model", "2026-03-01", "2026-03-01", usage.Day, usage.ByModel, []usage.Bucket{
				bucket("2026-03-01", "m1", 201, 21, 3), bucket("2026-03-01", "m2", 300, 30, 3)}},
			{"by endpoint", "2026-03-01", "2026-03-31", usage.Month, usage.ByEndpoint, []usage.Bucket{
				bucket("2026-03-01", "", 400, 40, 4), bucket("2026-03-01", "e1", 201, 21, 3), bucket("2026-03-01", "e2", 300, 30, 3)}},
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
		var entries []usage.Entry
		for i := range 20 {
			entries = append(entries, usage.Entry{TeamID: "t1", Voice: fmt.Sprint("v", i), Day: on("2026-03-01"), Counts: usage.Counts{Characters: 1, Requests: 1}})
		}
		backwards := slices.Clone(entries)
		slices.Reverse(backwards)
		var wg sync.WaitGroup
		for _, batch := range [][]usage.Entry{entries, backwards, entries, backwards, entries, backwards} {
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

func TestFailedBatchOfUsageCountsNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		err := add(t, s, []usage.Entry{
			{TeamID: "t1", Voice: "a", Day: on("2026-03-01"), Counts: usage.Counts{Characters: 1}},
			{TeamID: "t1", Voice: "b\x00", Day: on("2026-03-01"), Counts: usage.Counts{Characters: 1}},
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

func TestReportIsCountedOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		var receipts []usage.Receipt
		for i := range 300 {
			receipts = append(receipts, usage.Receipt{ID: fmt.Sprintf("%08d", i*7919%300), Entry: usage.Entry{
				TeamID: "t1", Voice: fmt.Sprint("v", i%3), Day: on("2026-03-01").Add(time.Duration(i) * time.Minute), Counts: usage.Counts{Characters: 10, Cached: 10, Requests: 1}}})
		}
		var counted atomic.Int64
		var wg sync.WaitGroup
		for i := range 8 { // instances that were delivered overlapping parts, in some order
			wg.Go(func() {
				part := slices.Clone(receipts[i*20 : i*20+160])
				slices.Reverse(part[:i*10])
				for range 2 {
					n, err := s.CountTTSUsage(t.Context(), append(part, part[0]), moment1)
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

func TestOldReportsAreForgotten(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		count := func(id string, at time.Time) int {
			n, err := s.CountTTSUsage(t.Context(), []usage.Receipt{{ID: id, Entry: usage.Entry{TeamID: "t1", Day: at, Counts: usage.Counts{Characters: 1}}}}, at)
			must(t, err)
			return n
		}
		count("old", moment1)
		count("new", moment1.Add(time.Hour))
		must(t, s.ForgetReceipts(t.Context(), moment1.Add(time.Minute)))
		if count("old", moment1) != 1 || count("new", moment1) != 0 {
			t.Error("the wrong one was forgotten")
		}
	})
}
