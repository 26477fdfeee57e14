// Package team owns the tenant: who keys, endpoints, quota and usage belong to.
package team

import (
	"context"
	"time"
)

// DefaultDailyQuota is what a team may ask of the API per UTC day unless an
// administrator says otherwise.
const DefaultDailyQuota = 50_000

// Team is one tenant.
type Team struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	DailyQuota *int64    `json:"-"` // nil: DefaultDailyQuota
	CreatedAt  time.Time `json:"createdAt"`
}

// Quota is the number of API requests the team may make per UTC day.
func (t Team) Quota() int64 {
	if t.DailyQuota == nil {
		return DefaultDailyQuota
	}
	return *t.DailyQuota
}

// Store keeps teams. Lookups of what is not there fail with fault.NotFound.
type Store interface {
	CreateTeam(ctx context.Context, t Team) error
	Team(ctx context.Context, id string) (Team, error)
	Teams(ctx context.Context) ([]Team, error)
	// UpdateTeam makes a change to a team's name and quota on top of every other:
	// of two at once, one is made after the other.
	UpdateTeam(ctx context.Context, id string, change func(*Team)) (Team, error)
}
