package sqlstore

import (
	"context"

	"telapi/internal/team"
)

var _ team.Store = (*Store)(nil)

const (
	insertTeam = `INSERT INTO teams (id, name, daily_quota, created_at) VALUES ($1, $2, $3, $4)`
	selectTeam = `SELECT id, name, daily_quota, created_at FROM teams WHERE id = $1`
	listTeams  = `SELECT id, name, daily_quota, created_at FROM teams ORDER BY created_at, id`
	lockTeam   = `UPDATE teams SET name = name WHERE id = $1 RETURNING id, name, daily_quota, created_at`
	updateTeam = `UPDATE teams SET name = $2, daily_quota = $3 WHERE id = $1`
)

func teamFields(t *team.Team) []any {
	return []any{&t.ID, &t.Name, &t.DailyQuota, timestamp{&t.CreatedAt}}
}

// CreateTeam adds a team.
func (s *Store) CreateTeam(ctx context.Context, t team.Team) error {
	return s.exec(ctx, "create", "team", insertTeam, teamFields(&t)...)
}

// Team returns a team.
func (s *Store) Team(ctx context.Context, id string) (team.Team, error) {
	return get(ctx, s, "team", teamFields, selectTeam, id)
}

// Teams returns all teams, oldest first.
func (s *Store) Teams(ctx context.Context) ([]team.Team, error) {
	return list(ctx, s, "teams", teamFields, listTeams)
}

// UpdateTeam changes a team's name and quota.
func (s *Store) UpdateTeam(ctx context.Context, id string, change func(*team.Team)) (team.Team, error) {
	return update(ctx, s, "team", teamFields, lockTeam, id, func(t *team.Team) (string, []any, error) {
		change(t)
		return updateTeam, []any{id, t.Name, t.DailyQuota}, nil
	})
}
