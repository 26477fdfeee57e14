package sqlstore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/speech"
	"telapi/test/testkit"
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
		testkit.Must(t,
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
		bucket := func(start string, group *string, characters, cached, requests int64) speech.UsageBucket {
			return speech.UsageBucket{Start: start, Group: group, UsageCounts: speech.UsageCounts{Characters: characters, Cached: cached, Billed: characters - cached, Requests: requests}}
		}
		for _, tt := range []struct {
			name     string
			from, to string
			interval speech.Interval
			group    speech.Property
			want     []speech.UsageBucket
		}{
			{"by day", "2026-03-01", "2026-03-31", speech.Day, "", []speech.UsageBucket{
				bucket("2026-03-01", noGroup, 501, 321, 4), bucket("2026-03-31", noGroup, 400, 0, 1)}},
			{"by month", "2026-02-01", "2026-04-30", speech.Month, "", []speech.UsageBucket{
				bucket("2026-02-01", noGroup, 100, 0, 1), bucket("2026-03-01", noGroup, 901, 321, 5), bucket("2026-04-01", noGroup, 1<<40, 0, 1)}},
			{"by provider", "2026-03-01", "2026-03-31", speech.Month, speech.ByProvider, []speech.UsageBucket{
				bucket("2026-03-01", new("acme"), 201, 21, 3), bucket("2026-03-01", new("beta"), 700, 300, 2)}},
			{"by voice, capitals first", "2026-03-01", "2026-03-31", speech.Month, speech.ByVoice, []speech.UsageBucket{
				bucket("2026-03-01", new("Zoe"), 700, 300, 2), bucket("2026-03-01", new("anna"), 201, 21, 3)}},
			{"by model", "2026-03-01", "2026-03-01", speech.Day, speech.ByModel, []speech.UsageBucket{
				bucket("2026-03-01", new("m1"), 201, 21, 3), bucket("2026-03-01", new("m2"), 300, 300, 1)}},
			{"by endpoint", "2026-03-01", "2026-03-31", speech.Month, speech.ByEndpoint, []speech.UsageBucket{
				bucket("2026-03-01", new(""), 400, 0, 1), bucket("2026-03-01", new("e1"), 201, 21, 3), bucket("2026-03-01", new("e2"), 300, 300, 1)}},
			{"no usage", "2025-01-01", "2025-12-31", speech.Day, speech.ByVoice, nil},
		} {
			got, err := s.UsageBuckets(t.Context(), speech.UsageQuery{TeamID: "t1", From: date(tt.from), To: date(tt.to), Interval: tt.interval, GroupBy: tt.group})
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: %+v, %v, want %+v", tt.name, got, err, tt.want)
			}
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
		got, err := s.UsageBuckets(t.Context(), speech.UsageQuery{TeamID: "t1", From: date("2026-03-01"), To: date("2026-03-01"), Interval: speech.Day})
		if err != nil || len(got) != 0 {
			t.Errorf("usage %+v, %v, want nothing", got, err)
		}
	})
}

func TestDayIsInUTC(t *testing.T) {
	testkit.Equal(t, "00:30 on 2026-11-15 in Berlin counts for", day(time.Date(2026, 11, 15, 0, 30, 0, 0, time.FixedZone("CET", 60*60))), "2026-11-14")
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
		got, err := s.UsageBuckets(t.Context(), speech.UsageQuery{TeamID: "t1", From: date("2026-03-01"), To: date("2026-03-01"), Interval: speech.Day})
		want := speech.UsageCounts{Characters: 3000, Cached: 3000, Requests: 300}
		if err != nil || len(got) != 1 || got[0].UsageCounts != want || counted.Load() != 300 {
			t.Errorf("usage %+v, %v, counted %d reports; want %+v and 300 reports", got, err, counted.Load(), want)
		}
	})
}

// checkUsage compares summaries of random periods with the sums of the reports that were added.
func checkUsage(t *testing.T, s *Store, random *rand.Rand, added []wire.SpeechReport) {
	t.Helper()
	groups := map[speech.Property]func(wire.SpeechReport) *string{
		"":                func(wire.SpeechReport) *string { return nil },
		speech.ByProvider: func(r wire.SpeechReport) *string { return &r.Provider },
		speech.ByVoice:    func(r wire.SpeechReport) *string { return &r.Voice },
		speech.ByModel:    func(r wire.SpeechReport) *string { return &r.Model },
		speech.ByEndpoint: func(r wire.SpeechReport) *string { return &r.EndpointID },
	}
	for _, teamID := range []string{"t0", "t1", "none"} {
		for group, valueOf := range groups {
			for _, interval := range speech.Intervals {
				from := date("2025-11-20").AddDate(0, 0, random.IntN(60))
				q := speech.UsageQuery{TeamID: teamID, From: from, To: from.AddDate(0, 0, random.IntN(80)), Interval: interval, GroupBy: group}
				got, err := s.UsageBuckets(t.Context(), q)
				testkit.Must(t, err)
				want := map[string]speech.UsageCounts{}
				for _, r := range added {
					start := day(time.UnixMilli(r.At))
					if r.TeamID != teamID || start < day(q.From) || start > day(q.To) {
						continue
					}
					if interval == speech.Month {
						start = start[:len("2025-11")] + "-01"
					}
					key := bucketKey(start, valueOf(r))
					sum := want[key]
					sum.Characters, sum.Requests = sum.Characters+r.Characters, sum.Requests+1
					if r.Cached {
						sum.Cached += r.Characters
					} else {
						sum.Billed += r.Characters
					}
					want[key] = sum
				}
				sums, keys := map[string]speech.UsageCounts{}, []string{}
				for _, b := range got {
					key := bucketKey(b.Start, b.Group)
					sums[key], keys = b.UsageCounts, append(keys, key)
				}
				if !maps.Equal(sums, want) || !slices.IsSorted(keys) || len(keys) != len(sums) {
					t.Fatalf("usage %+v:\n%+v\nwant the sums of the reports:\n%+v", q, got, want)
				}
			}
		}
	}
}

func bucketKey(start string, group *string) string {
	if group == nil {
		return start
	}
	return start + " " + *group
}

// randomReports returns reports of two teams around two turns of months.
func randomReports(random *rand.Rand, n int) []wire.SpeechReport {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	reports := make([]wire.SpeechReport, n)
	for i := range reports {
		at := date("2025-11-25").Add(time.Duration(random.Int64N(int64(50 * 24 * time.Hour))))
		reports[i] = wire.SpeechReport{TeamID: pick("t0", "t1"), EndpointID: pick("", "e1", "e2"), Provider: pick("acme", "beta"),
			Voice: pick("", "voice", "acme"), Model: pick("m1", "m2"), At: at.UnixMilli(), Characters: 1 + random.Int64N(1<<33), Cached: random.IntN(2) == 0}
	}
	return reports
}

func TestUsageIsTheSumOfItsReports(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		var added []wire.SpeechReport
		for range 3 {
			reports := randomReports(random, 40)
			testkit.Must(t, addNew(t, s, reports))
			added = append(added, reports...)
			checkUsage(t, s, random, added)
		}
	})
}

// Reports of one day share totals, and instances add them at the same time.
func TestConcurrentReportsCannotDeadlock(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		random := rand.New(rand.NewPCG(1, 2))
		var adding sync.WaitGroup
		var added []wire.SpeechReport
		for range 6 {
			reports := randomReports(random, 200)
			added = append(added, reports...)
			adding.Go(func() {
				for batch := range slices.Chunk(reports, 20) {
					if err := addNew(t, s, batch); err != nil {
						t.Error(err)
					}
				}
			})
		}
		adding.Wait()
		checkUsage(t, s, random, added)
	})
}
