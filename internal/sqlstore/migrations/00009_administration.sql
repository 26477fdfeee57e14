-- +goose Up

-- A disabled team has no working credentials. Older servers ignore the column.
ALTER TABLE teams ADD COLUMN disabled BOOLEAN NOT NULL DEFAULT FALSE;

-- Every change by an administrator. team_id is the team of the target, and empty for
-- the rate limits. details is a JSON object.
CREATE TABLE audit (
    id          TEXT   NOT NULL PRIMARY KEY,
    happened_at BIGINT NOT NULL,
    actor_type  TEXT   NOT NULL,
    actor_id    TEXT   NOT NULL,
    action      TEXT   NOT NULL,
    target      TEXT   NOT NULL,
    team_id     TEXT   NOT NULL,
    details     TEXT   NOT NULL
);
CREATE INDEX audit_of_team ON audit (team_id, id);

-- Lists of sessions, and the sessions that end with their team or endpoint.
CREATE INDEX sessions_of_team ON sessions (team_id, id);
CREATE INDEX sessions_live_of_endpoint ON sessions (endpoint_id) WHERE ended_at IS NULL;
