-- +goose Up

-- Lists of a team's sessions in a state. ended_as is NULL until a session ends.
CREATE INDEX sessions_by_state ON sessions (team_id, ended_as, id);
