package sqlstore

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/usage"
)

// rowSums reads every row of usage. Its arguments are expressions for the first day of a bucket and for its group.
const rowSums = `SELECT %s, %s, CAST(SUM(characters) AS BIGINT), CAST(SUM(cached_characters) AS BIGINT),
		CAST(SUM(characters - cached_characters) AS BIGINT), CAST(SUM(requests) AS BIGINT)
	FROM tts_usage WHERE team_id = $1 AND day >= $2 AND day <= $3 GROUP BY 1, 2 ORDER BY 1, 2`

// checkTotals compares summaries of random periods with the sums of the rows.
func checkTotals(t *testing.T, s *Store, random *rand.Rand) {
	t.Helper()
	groups := map[usage.Group]string{"": `CAST(NULL AS TEXT)`, usage.ByProvider: `provider`, usage.ByVoice: `voice`,
		usage.ByModel: `model`, usage.ByEndpoint: `endpoint_id`}
	intervals := map[usage.Interval]string{usage.Day: `day`, usage.Month: `substr(day, 1, 7) || '-01'`}
	buckets := 0
	for _, teamID := range []string{"t0", "t1", "none"} {
		for group, column := range groups {
			for interval, start := range intervals {
				from := date("2025-11-20").AddDate(0, 0, random.IntN(60))
				q := usage.Query{TeamID: teamID, From: from, To: from.AddDate(0, 0, random.IntN(80)), Interval: interval, GroupBy: group}
				got, err := s.TTSUsage(t.Context(), q)
				must(t, err)
				want, err := queryAll(t.Context(), s.read, func(b *usage.Bucket) []any {
					return []any{&b.Start, &b.Group, &b.Characters, &b.Cached, &b.Billed, &b.Requests}
				}, fmt.Sprintf(rowSums, start, column), teamID, day(q.From), day(q.To))
				must(t, err)
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("usage %+v:\n%+v\nwant the sums of the rows:\n%+v", q, got, want)
				}
				buckets += len(got)
			}
		}
	}
	if buckets == 0 {
		t.Fatal("no usage was compared")
	}
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

func TestUsageTotalsEqualTheirRows(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		for range 3 {
			must(t, addNew(t, s, randomReports(random, 100)))
			checkTotals(t, s, random)
		}
	})
}

// Reports of one day share totals, and instances add them at the same time.
func TestConcurrentReportsCannotDeadlock(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		random := rand.New(rand.NewPCG(1, 2))
		var adding sync.WaitGroup
		for range 6 {
			batches := slices.Collect(slices.Chunk(randomReports(random, 200), 20))
			adding.Go(func() {
				for _, batch := range batches {
					if err := addNew(t, s, batch); err != nil {
						t.Error(err)
					}
				}
			})
		}
		adding.Wait()
		checkTotals(t, s, random)
	})
}
