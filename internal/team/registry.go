package team

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"telapi/internal/fault"
)

// MaxDailyQuota is the largest quota that can be set.
const MaxDailyQuota = 1_000_000_000

// Announcer tells every running instance that something changed.
type Announcer interface {
	Announce(ctx context.Context, topic string) error
}

const topicPrefix = "team:"

// Registry is the administrator's side of teams.
type Registry struct {
	teams    Store
	announce Announcer
	now      func() time.Time
}

// NewRegistry returns a registry on the given store.
func NewRegistry(teams Store, announce Announcer, now func() time.Time) *Registry {
	return &Registry{teams: teams, announce: announce, now: now}
}

// Create makes a team.
func (r *Registry) Create(ctx context.Context, name string) (Team, error) {
	name, err := cleanName(name)
	if err != nil {
		return Team{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Team{}, fmt.Errorf("make team id: %w", err)
	}
	t := Team{ID: "tm_" + id.String(), Name: name, CreatedAt: r.now()}
	if err := r.teams.CreateTeam(ctx, t); err != nil {
		return Team{}, fmt.Errorf("create team: %w", err)
	}
	return t, nil
}

// List returns all teams.
func (r *Registry) List(ctx context.Context) ([]Team, error) { return r.teams.Teams(ctx) }

// Show returns one team.
func (r *Registry) Show(ctx context.Context, id string) (Team, error) { return r.teams.Team(ctx, id) }

// Rename changes a team's name.
func (r *Registry) Rename(ctx context.Context, id, name string) (Team, error) {
	name, err := cleanName(name)
	if err != nil {
		return Team{}, err
	}
	return r.update(ctx, id, func(t *Team) { t.Name = name })
}

// SetQuota changes a team's daily quota; nil goes back to the default. Running
// instances hold the new quota as soon as the announcement reaches them.
func (r *Registry) SetQuota(ctx context.Context, id string, quota *int64) (Team, error) {
	if quota != nil && (*quota < 0 || *quota > MaxDailyQuota) {
		var issues fault.Issues
		issues.Add("/dailyQuota", fault.IssueValue, "A quota is a number from 0 to %d.", MaxDailyQuota)
		return Team{}, issues.Err()
	}
	t, err := r.update(ctx, id, func(t *Team) { t.DailyQuota = quota })
	if err != nil {
		return Team{}, err
	}
	if err := r.announce.Announce(ctx, topicPrefix+id); err != nil {
		return Team{}, fmt.Errorf("the quota is saved, but running instances could not be told and may use the old one for up to %s: %w", cacheTTL, err)
	}
	return t, nil
}

func (r *Registry) update(ctx context.Context, id string, change func(*Team)) (Team, error) {
	t, err := r.teams.Team(ctx, id)
	if err != nil {
		return Team{}, fmt.Errorf("update team: %w", err)
	}
	change(&t)
	if err := r.teams.UpdateTeam(ctx, t); err != nil {
		return Team{}, fmt.Errorf("update team: %w", err)
	}
	return t, nil
}

func cleanName(name string) (string, error) {
	name = strings.TrimSpace(name)
	var issues fault.Issues
	if name == "" {
		issues.Add("/name", fault.IssueRequired, "A team needs a name.")
	}
	issues.CheckName("/name", name, 100)
	return name, issues.Err()
}
