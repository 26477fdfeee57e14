package team

import (
	"context"
	"strings"
	"time"

	"telapi/internal/fault"
	"telapi/internal/fresh"
)

const (
	cacheTTL    = 30 * time.Second
	cachedTeams = 10_000
)

// Quotas answers how much a team may ask per day without a query per request.
type Quotas struct {
	teams Store
	cache *fresh.Cache[int64]
}

// NewQuotas returns quotas whose cache holds nothing until Up is called.
func NewQuotas(teams Store) *Quotas {
	return &Quotas{teams: teams, cache: fresh.New[int64](cachedTeams, cacheTTL)}
}

// Of returns a team's daily quota. A team that only the console knows has the default.
func (q *Quotas) Of(ctx context.Context, teamID string) (int64, error) {
	return q.cache.Get(ctx, teamID, func(ctx context.Context) (int64, error) {
		t, err := q.teams.Team(ctx, teamID)
		if fault.Is(err, fault.NotFound) {
			return DefaultDailyQuota, nil
		}
		return t.Quota(), err
	})
}

// Up lets the cache hold values: announcements reach this instance.
func (q *Quotas) Up() { q.cache.Resume() }

// Down empties the cache: a change might pass unheard now.
func (q *Quotas) Down(error) { q.cache.Suspend() }

// Message drops what an announcement names.
func (q *Quotas) Message(topic string) {
	if id, ok := strings.CutPrefix(topic, topicPrefix); ok {
		q.cache.Drop(id)
	}
}
