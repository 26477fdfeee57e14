package team

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"telapi/internal/cache"
	"telapi/internal/fault"
)

// MaxDailyQuota is the largest quota that can be set.
const MaxDailyQuota = 1_000_000_000

// topicPrefix, followed by a team's ID, is announced when the team changes.
const topicPrefix = "team:"

// Registry creates and changes teams.
type Registry struct {
	Store    Store
	Announce cache.Announcer
	Now      func() time.Time
}

// Create creates a team.
func (r *Registry) Create(ctx context.Context, name string) (Team, error) {
	name, err := cleanName(name)
	if err != nil {
		return Team{}, err
	}
	t := Team{ID: "tm_" + uuid.Must(uuid.NewV7()).String(), Name: name, CreatedAt: r.Now()}
	if err := r.Store.CreateTeam(ctx, t); err != nil {
		return Team{}, fmt.Errorf("create team: %w", err)
	}
	return t, nil
}

// Rename changes a team's name.
func (r *Registry) Rename(ctx context.Context, id, name string) (Team, error) {
	name, err := cleanName(name)
	if err != nil {
		return Team{}, err
	}
	return r.Store.UpdateTeam(ctx, id, func(t *Team) { t.Name = name })
}

// SetQuota changes a team's daily quota. nil restores the default. Running
// instances apply the new quota when they receive the announcement.
func (r *Registry) SetQuota(ctx context.Context, id string, quota *int64) (Team, error) {
	var issues fault.Issues
	if quota != nil {
		fault.CheckRange(&issues, "/dailyQuota", *quota, 0, MaxDailyQuota)
	}
	if err := issues.Err(); err != nil {
		return Team{}, err
	}
	t, err := r.Store.UpdateTeam(ctx, id, func(t *Team) { t.DailyQuota = quota })
	if err != nil {
		return Team{}, err
	}
	if err := r.Announce.Announce(ctx, topicPrefix+id); err != nil {
		return Team{}, fmt.Errorf("the quota is saved, but announcing it failed: running instances may use the old quota for up to %s: %w", cache.TTL, err)
	}
	return t, nil
}

func cleanName(name string) (string, error) {
	name = strings.TrimSpace(name)
	var issues fault.Issues
	if name == "" {
		issues.Add("/name", fault.IssueRequired, "The team name is empty.")
	}
	issues.CheckName("/name", name, 100)
	return name, issues.Err()
}
