package team

import (
	"context"

	"telapi/internal/cache"
	"telapi/internal/fault"
)

// Quotas caches the daily quotas of teams.
type Quotas struct {
	*cache.Cache[int64]
	teams Store
}

// NewQuotas returns an empty cache.
func NewQuotas(teams Store) *Quotas {
	return &Quotas{cache.New[int64](topicPrefix, cache.Size, cache.TTL), teams}
}

// Of returns a team's daily quota. A team that exists only in the console has the
// default.
func (q *Quotas) Of(ctx context.Context, teamID string) (int64, error) {
	return q.Get(ctx, teamID, func(ctx context.Context) (int64, error) {
		t, err := q.teams.Team(ctx, teamID)
		if fault.Is(err, fault.NotFound) {
			return DefaultDailyQuota, nil
		}
		return t.Quota(), err
	})
}
