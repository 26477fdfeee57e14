package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/usage"
	"telapi/test/testkit"
)

// rowSums is the query of version 0.9.19, which reads every row of usage. Its arguments
// are expressions for the first day of a bucket and for its group.
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
			for _, statement := range []string{
				`DELETE FROM tts_usage WHERE team_id = 't0' AND day = $1`,
				`DELETE FROM tts_usage WHERE voice = 'voice' AND day = $1`,
				`UPDATE tts_usage SET characters = characters + 7, requests = requests + 1 WHERE day = $1`,
			} {
				_, err := s.write.ExecContext(t.Context(), statement, day(date("2025-11-25").AddDate(0, 0, random.IntN(50))))
				must(t, err)
			}
			checkTotals(t, s, random)
		}
		tx, err := s.write.BeginTx(t.Context(), nil)
		must(t, err)
		_, err = tx.ExecContext(t.Context(), fmt.Sprintf(addUsage, placeholders(1, 9)), "t0", "2025-12-01", "e1", "acme", "voice", "m1", 100, 0, 1)
		must(t, err, tx.Rollback())
		checkTotals(t, s, random)
	})
}

// addLikeOlder adds reports as version 0.9.19 does: in one transaction, with a statement
// for each row, in the order of the keys.
func addLikeOlder(t *testing.T, s *Store, reports []wire.SpeechReport) error {
	rows := make([][]string, len(reports))
	for i, r := range reports {
		rows[i] = []string{r.TeamID, day(time.UnixMilli(r.At)), r.EndpointID, r.Provider, r.Voice, r.Model}
	}
	slices.SortFunc(rows, slices.Compare)
	return s.inTx(t.Context(), "add usage reports", func(ctx context.Context, tx *sql.Tx) error {
		for _, key := range rows {
			if _, err := execRows(ctx, tx, fmt.Sprintf(addUsage, placeholders(1, 9)), key[0], key[1], key[2], key[3], key[4], key[5], 12, 5, 1); err != nil {
				return err
			}
		}
		return nil
	})
}

// Older servers add usage before, during and after the migration by a newer server.
func TestMigrationTotalsUsageOfOlderServers(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			options := engine.make(t)
			older := open(t, options)
			_, err := older.schema.UpTo(t.Context(), 9)
			must(t, err)
			older.migrated.Store(true)
			random := rand.New(rand.NewPCG(1, 2))
			must(t, addLikeOlder(t, older, randomReports(random, 200)))

			newer := open(t, options)
			migrated := make(chan struct{})
			var adding sync.WaitGroup
			for range 3 {
				batches := slices.Collect(slices.Chunk(randomReports(random, 100), 10))
				adding.Go(func() {
					for _, batch := range batches[:5] {
						if err := addLikeOlder(t, older, batch); err != nil {
							t.Error(err)
						}
					}
					<-migrated
					for _, batch := range batches[5:] {
						if err := errors.Join(addLikeOlder(t, older, batch), addNew(t, newer, batch)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			must(t, newer.Migrate(t.Context()))
			close(migrated)
			adding.Wait()
			checkTotals(t, newer, random)
		})
	}
}

func TestUsageOfOneDayCannotDeadlock(t *testing.T) {
	s := open(t, engines[1].make(t)) // PostgreSQL: SQLite has one writer at a time
	must(t, s.Migrate(t.Context()))
	add := func(tx *sql.Tx, endpoint string) error {
		_, err := tx.ExecContext(t.Context(), fmt.Sprintf(addUsage, placeholders(1, 9)), "t1", "2025-12-01", endpoint, "", "", "", 1, 0, 1)
		return err
	}
	first, err := s.write.BeginTx(t.Context(), nil)
	must(t, err, add(first, "e1"))
	second := make(chan error)
	go func() {
		second <- s.inTx(t.Context(), "add usage", func(_ context.Context, tx *sql.Tx) error { return add(tx, "e2") })
	}()
	testkit.Until(t, "the second transaction waits", func() bool {
		var waiting int
		must(t, s.read.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting))
		return waiting > 0
	})
	must(t, add(first, "e2"), first.Commit(), <-second)
	got, err := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", From: date("2025-12-01"), To: date("2025-12-01"), Interval: usage.Day})
	if err != nil || len(got) != 1 || got[0].Requests != 3 {
		t.Errorf("usage %+v, %v, want 3 requests", got, err)
	}
}
