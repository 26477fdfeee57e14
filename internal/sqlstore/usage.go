package sqlstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"telapi/internal/usage"
)

var _ usage.Store = (*Store)(nil)

const addUsage = `INSERT INTO tts_usage (team_id, day, endpoint_id, provider, voice, model, characters, cached_characters, requests)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
	ON CONFLICT (team_id, day, endpoint_id, provider, voice, model) DO UPDATE SET
		characters = tts_usage.characters + excluded.characters,
		cached_characters = tts_usage.cached_characters + excluded.cached_characters,
		requests = tts_usage.requests + excluded.requests`

// sumUsage takes an expression of usageIntervals and one of usageGroups.
const sumUsage = `SELECT %s, %s, CAST(SUM(characters) AS BIGINT), CAST(SUM(cached_characters) AS BIGINT), CAST(SUM(requests) AS BIGINT)
	FROM tts_usage WHERE team_id = $1 AND day >= $2 AND day <= $3 GROUP BY 1, 2`

var (
	// The first day of a bucket.
	usageIntervals = map[usage.Interval]string{
		usage.Day:   `day`,
		usage.Month: `substr(day, 1, 7) || '-01'`,
	}
	usageGroups = map[usage.Group]string{
		"":               `''`,
		usage.ByProvider: `provider`,
		usage.ByVoice:    `voice`,
		usage.ByModel:    `model`,
		usage.ByEndpoint: `endpoint_id`,
	}
)

// TTSUsage adds up a team's account.
func (s *Store) TTSUsage(ctx context.Context, q usage.Query) ([]usage.Bucket, error) {
	interval, group := usageIntervals[q.Interval], usageGroups[q.GroupBy]
	if interval == "" || group == "" {
		return nil, fmt.Errorf("no account by interval %q and group %q", q.Interval, q.GroupBy)
	}
	buckets, err := list(ctx, s, "usage", scanBucket, fmt.Sprintf(sumUsage, interval, group), q.TeamID, day(q.From), day(q.To))
	// Sorted here, because databases disagree about the order of text.
	slices.SortFunc(buckets, func(a, b usage.Bucket) int {
		return cmp.Or(a.Start.Compare(b.Start), cmp.Compare(a.Group, b.Group))
	})
	return buckets, err
}

// AddTTSUsage adds entries to the account, all or none.
func (s *Store) AddTTSUsage(ctx context.Context, entries []usage.Entry) error {
	inOrder := slices.SortedFunc(slices.Values(entries), func(a, b usage.Entry) int {
		return cmp.Or(cmp.Compare(a.TeamID, b.TeamID), a.Day.Compare(b.Day), cmp.Compare(a.EndpointID, b.EndpointID),
			cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Voice, b.Voice), cmp.Compare(a.Model, b.Model))
	})
	sets := make([][]any, len(inOrder))
	for i, e := range inOrder {
		sets[i] = []any{e.TeamID, day(e.Day), e.EndpointID, e.Provider, e.Voice, e.Model, e.Characters, e.Cached, e.Requests}
	}
	return s.changeAll(ctx, "add to the account of speech", addUsage, sets)
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

func scanBucket(r row) (b usage.Bucket, err error) {
	var start string
	if err := r.Scan(&start, &b.Group, &b.Characters, &b.Cached, &b.Requests); err != nil {
		return b, err
	}
	b.Start, err = time.Parse(time.DateOnly, start)
	return b, err
}
