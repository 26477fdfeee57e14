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
	"telapi/internal/usage"
)

// addUsage is a format string. Its argument is a list of rows, each with a different
// key and in the order of the keys, so that concurrent servers cannot deadlock.
const addUsage = `INSERT INTO tts_usage (team_id, day, endpoint_id, provider, voice, model, characters, cached_characters, requests)
	VALUES %s
	ON CONFLICT (team_id, day, endpoint_id, provider, voice, model) DO UPDATE SET
		characters = tts_usage.characters + excluded.characters,
		cached_characters = tts_usage.cached_characters + excluded.cached_characters,
		requests = tts_usage.requests + excluded.requests`

// sumUsage is a format string. Its argument is an expression of usageIntervals.
// Totals without requests are those of deleted usage.
const sumUsage = `SELECT %[1]s, value, CAST(SUM(characters) AS BIGINT), CAST(SUM(cached_characters) AS BIGINT), CAST(SUM(requests) AS BIGINT)
	FROM usage_totals WHERE team_id = $1 AND property = $2 AND day >= $3 AND day <= $4 AND requests <> 0 GROUP BY %[1]s, value`

const deleteReports = `DELETE FROM usage_reports WHERE id IN (SELECT id FROM usage_reports WHERE counted_at < $1 ORDER BY id LIMIT $2)`

// usageIntervals are expressions for the interval of a day.
var usageIntervals = map[usage.Interval]string{
	usage.Day:   `day`,
	usage.Month: `substr(day, 1, 7)`,
}

// TTSUsage implements usage.Store.
func (s *Store) TTSUsage(ctx context.Context, q usage.Query) ([]usage.Bucket, error) {
	interval := usageIntervals[q.Interval]
	if interval == "" || q.GroupBy != "" && !slices.Contains(usage.Groups, q.GroupBy) {
		return nil, fmt.Errorf("unknown interval %q or group %q", q.Interval, q.GroupBy)
	}
	buckets, err := list(ctx, s, "usage", func(b *usage.Bucket) []any {
		return []any{&b.Start, &b.Group, &b.Characters, &b.Cached, &b.Requests}
	}, fmt.Sprintf(sumUsage, interval), q.TeamID, q.GroupBy, day(q.From), day(q.To))
	for i := range buckets {
		b := &buckets[i]
		b.Billed = b.Characters - b.Cached
		if q.Interval == usage.Month {
			b.Start += "-01"
		}
		if q.GroupBy == "" {
			b.Group = nil
		}
	}
	// Sorted here because databases differ in their order of text.
	slices.SortFunc(buckets, func(a, b usage.Bucket) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(*cmp.Or(a.Group, new(string)), *cmp.Or(b.Group, new(string))))
	})
	return buckets, err
}

// AddReports implements usage.ReportStore. It writes IDs and sums in a fixed
// order, so that instances with the same reports cannot deadlock.
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
		type key [6]string // the primary key
		sums := map[key]usage.Counts{}
		for _, id := range newIDs {
			r := byID[id]
			k := key{r.TeamID, day(time.UnixMilli(r.At)), r.EndpointID, r.Provider, r.Voice, r.Model}
			sum := sums[k]
			sum.Characters += r.Characters
			sum.Requests++
			if r.Cached {
				sum.Cached += r.Characters
			}
			sums[k] = sum
		}
		if len(sums) == 0 {
			return nil
		}
		var args []any
		for _, k := range slices.SortedFunc(maps.Keys(sums), func(a, b key) int { return slices.Compare(a[:], b[:]) }) {
			args = append(args, k[0], k[1], k[2], k[3], k[4], k[5], sums[k].Characters, sums[k].Cached, sums[k].Requests)
		}
		_, err = execRows(ctx, tx, fmt.Sprintf(addUsage, placeholders(len(sums), len(args))), args...)
		return err
	})
	return added, err
}

// insertReportIDs stores report IDs and returns those that were new.
func insertReportIDs(ctx context.Context, tx *sql.Tx, ids []string, now time.Time) ([]string, error) {
	var args []any
	for _, id := range ids {
		args = append(args, id, now.UnixMilli())
	}
	return queryAll(ctx, tx, column[string], "INSERT INTO usage_reports (id, counted_at) VALUES "+placeholders(len(ids), len(args))+
		" ON CONFLICT (id) DO NOTHING RETURNING id", args...)
}

// placeholders returns the placeholders of a number of arguments, divided into rows.
func placeholders(rows, args int) string {
	var list strings.Builder
	for i := range args {
		separator := ", "
		if i == 0 {
			separator = "("
		} else if i%(args/rows) == 0 {
			separator = "), ("
		}
		fmt.Fprintf(&list, "%s$%d", separator, i+1)
	}
	return list.String() + ")"
}

// DeleteReports implements usage.ReportStore. It deletes in pages.
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
