// Package team manages teams. A team is a tenant: it owns API keys, endpoints, a
// daily quota and usage.
package team

import (
	"context"
	"time"
)

// DefaultDailyQuota is the number of API requests per UTC day of a team without
// its own quota.
const DefaultDailyQuota = 50_000

// Team is one tenant.
type Team struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	DailyQuota *int64    `json:"-"` // nil: DefaultDailyQuota
	CreatedAt  time.Time `json:"createdAt"`
}

// Quota returns the number of API requests that the team may make per UTC day.
func (t Team) Quota() int64 {
	if t.DailyQuota == nil {
		return DefaultDailyQuota
	}
	return *t.DailyQuota
}

// Store stores teams. It returns fault.NotFound for an unknown ID.
type Store interface {
	CreateTeam(ctx context.Context, t Team) error
	Team(ctx context.Context, id string) (Team, error)
	Teams(ctx context.Context) ([]Team, error)
	// UpdateTeam changes a team's name and quota. Concurrent updates are applied
	// one after the other.
	UpdateTeam(ctx context.Context, id string, change func(*Team)) (Team, error)
}
