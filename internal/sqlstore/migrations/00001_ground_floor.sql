-- +goose Up
-- One text for PostgreSQL and SQLite. Moments are Unix milliseconds, days are
-- yyyy-mm-dd in UTC, lists and profiles are JSON text.

CREATE TABLE teams (
    id          TEXT   NOT NULL PRIMARY KEY,
    name        TEXT   NOT NULL,
    daily_quota BIGINT,
    created_at  BIGINT NOT NULL
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

-- An account refers to nothing: what was spoken counts, whatever became of the
-- endpoint it was spoken on.
CREATE TABLE tts_usage (
    team_id           TEXT   NOT NULL,
    day               TEXT   NOT NULL,
    endpoint_id       TEXT   NOT NULL,
    provider          TEXT   NOT NULL,
    voice             TEXT   NOT NULL,
    model             TEXT   NOT NULL,
    characters        BIGINT NOT NULL,
    cached_characters BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    PRIMARY KEY (team_id, day, endpoint_id, provider, voice, model)
);

CREATE TABLE settings (
    name       TEXT   NOT NULL PRIMARY KEY,
    value      TEXT   NOT NULL,
    updated_at BIGINT NOT NULL
);
