-- +goose Up
-- The same text for PostgreSQL and SQLite. Times are Unix milliseconds, days are
-- yyyy-mm-dd in UTC, lists and profiles are JSON text.

-- A disabled team has no working credentials.
CREATE TABLE teams (
    id          TEXT    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL,
    daily_quota BIGINT,
    created_at  BIGINT  NOT NULL,
    disabled    BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX teams_by_age ON teams (created_at, id);

CREATE TABLE api_keys (
    id           TEXT   NOT NULL PRIMARY KEY,
    team_id      TEXT   NOT NULL REFERENCES teams (id),
    name         TEXT   NOT NULL,
    digest       TEXT   NOT NULL,
    scopes       TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    expires_at   BIGINT,
    revoked_at   BIGINT,
    last_used_at BIGINT
);
CREATE INDEX api_keys_by_age ON api_keys (created_at, id);
CREATE INDEX api_keys_of_team ON api_keys (team_id, created_at, id);

CREATE TABLE endpoints (
    id         TEXT    NOT NULL PRIMARY KEY,
    team_id    TEXT    NOT NULL REFERENCES teams (id),
    name       TEXT    NOT NULL,
    enabled    BOOLEAN NOT NULL,
    modes      TEXT    NOT NULL,
    origins    TEXT    NOT NULL,
    profile    TEXT    NOT NULL,
    created_at BIGINT  NOT NULL,
    updated_at BIGINT  NOT NULL
);
CREATE INDEX endpoints_of_team ON endpoints (team_id, id);

CREATE TABLE settings (
    name       TEXT   NOT NULL PRIMARY KEY,
    value      TEXT   NOT NULL,
    updated_at BIGINT NOT NULL
);

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
