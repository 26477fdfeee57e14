package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/speech"
)

// A statement that adds usage is insertUsage, placeholders and addToKnownUsage. Its rows have
// different keys, and are in the order of the keys.
const (
	insertUsage     = `INSERT INTO usage_totals AS known (team_id, property, day, value, characters, cached_characters, requests) VALUES `
	addToKnownUsage = ` ON CONFLICT (team_id, property, day, value) DO UPDATE SET
		characters = known.characters + excluded.characters,
		cached_characters = known.cached_characters + excluded.cached_characters,
		requests = known.requests + excluded.requests`
)

// sumUsage sums by day or by month: $5 is the length of such a date, 2006-01-02 or 2006-01.
const sumUsage = `SELECT substr(day, 1, $5), value, CAST(SUM(characters) AS BIGINT), CAST(SUM(cached_characters) AS BIGINT), CAST(SUM(requests) AS BIGINT)
	FROM usage_totals WHERE team_id = $1 AND property = $2 AND day >= $3 AND day <= $4 GROUP BY 1, 2`

const deleteReports = `DELETE FROM usage_reports WHERE id IN (SELECT id FROM usage_reports WHERE counted_at < $1 ORDER BY id LIMIT $2)`

// UsageBuckets implements speech.UsageStore.
func (s *Store) UsageBuckets(ctx context.Context, q speech.UsageQuery) ([]speech.UsageBucket, error) {
	dateLength := len("2006-01-02")
	if q.Interval == speech.Month {
		dateLength = len("2006-01")
	}
	buckets, err := list(ctx, s, "usage", func(b *speech.UsageBucket) []any {
		return []any{&b.Start, &b.Group, &b.Characters, &b.Cached, &b.Requests}
	}, sumUsage, q.TeamID, q.GroupBy, day(q.From), day(q.To), dateLength)
	// Sorted here because databases differ in their order of text. The query sets all groups.
	slices.SortFunc(buckets, func(a, b speech.UsageBucket) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(*a.Group, *b.Group))
	})
	for i := range buckets {
		b := &buckets[i]
		b.Billed = b.Characters - b.Cached
		if q.Interval == speech.Month {
			b.Start += "-01"
		}
		if q.GroupBy == "" {
			b.Group = nil
		}
	}
	return buckets, err
}

// AddReports implements speech.ReportStore. It writes IDs and then usage, both in the order of the
// keys, so that instances cannot deadlock.
func (s *Store) AddReports(ctx context.Context, reports []wire.SpeechReport, now time.Time) (added int, err error) {
	byID := make(map[string]wire.SpeechReport, len(reports))
	for _, r := range reports {
		byID[r.ID] = r
	}
	if len(byID) == 0 {
		return 0, nil
	}
	err = s.inTx(ctx, "add usage reports", func(ctx context.Context, tx *sql.Tx) error {
		newIDs, err := insertReportIDs(ctx, tx, slices.Sorted(maps.Keys(byID)), now)
		if err != nil {
			return err
		}
		added = len(newIDs)
		sums := map[usageKey]speech.UsageCounts{}
		for _, id := range newIDs {
			r := byID[id]
			for property, value := range map[speech.Property]string{
				"":                "", // all usage of the day
				speech.ByProvider: r.Provider, speech.ByVoice: r.Voice, speech.ByModel: r.Model, speech.ByEndpoint: r.EndpointID,
			} {
				key := usageKey{r.TeamID, string(property), day(time.UnixMilli(r.At)), value}
				sum := sums[key]
				sum.Characters += r.Characters
				sum.Requests++
				if r.Cached {
					sum.Cached += r.Characters
				}
				sums[key] = sum
			}
		}
		return writeUsage(ctx, tx, sums)
	})
	return added, err
}

// usageKey is a primary key: team, property, day and value.
type usageKey [4]string

// maxUsageRows bounds the parameters of a statement: SQLite allows 32,766.
const maxUsageRows = 1000

func writeUsage(ctx context.Context, tx *sql.Tx, sums map[usageKey]speech.UsageCounts) error {
	sorted := slices.SortedFunc(maps.Keys(sums), func(a, b usageKey) int { return slices.Compare(a[:], b[:]) })
	for keys := range slices.Chunk(sorted, maxUsageRows) {
		var args []any
		for _, key := range keys {
			sum := sums[key]
			args = append(args, key[0], key[1], key[2], key[3], sum.Characters, sum.Cached, sum.Requests)
		}
		if _, err := execRows(ctx, tx, insertUsage+placeholders(len(keys), 7)+addToKnownUsage, args...); err != nil {
			return err
		}
	}
	return nil
}

// insertReportIDs stores report IDs and returns those that were new.
func insertReportIDs(ctx context.Context, tx *sql.Tx, ids []string, now time.Time) ([]string, error) {
	var args []any
	for _, id := range ids {
		args = append(args, id, now.UnixMilli())
	}
	return queryAll(ctx, tx, column[string], "INSERT INTO usage_reports (id, counted_at) VALUES "+placeholders(len(ids), 2)+
		" ON CONFLICT (id) DO NOTHING RETURNING id", args...)
}

// placeholders returns a list of rows, each in parentheses: ($1, $2), ($3, $4).
func placeholders(rows, columns int) string {
	list := make([]string, rows)
	for row := range list {
		values := make([]string, columns)
		for i := range values {
			values[i] = fmt.Sprint("$", row*columns+i+1)
		}
		list[row] = "(" + strings.Join(values, ", ") + ")"
	}
	return strings.Join(list, ", ")
}

// DeleteReports implements speech.ReportStore. It deletes in pages.
func (s *Store) DeleteReports(ctx context.Context, before time.Time) error {
	const page = 5000
	for {
		deleted, err := s.execBatch(ctx, "delete usage reports", deleteReports, []any{before.UnixMilli(), page})
		if err != nil || deleted < page {
			return err
		}
	}
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }
