-- +goose Up

-- due_at is when a session ends unless it is used before: redeem_by until it is
-- redeemed, expires_at from then on. settled is true when the channel of an ended
-- session has been ended too. ended_as is NULL until a session ends.
CREATE TABLE sessions (
    id               TEXT    NOT NULL PRIMARY KEY,
    team_id          TEXT    NOT NULL REFERENCES teams (id),
    endpoint_id      TEXT    NOT NULL,
    mode             TEXT    NOT NULL,
    identity         TEXT,
    metadata         TEXT,
    duplicate_policy TEXT    NOT NULL,
    token_id         TEXT    NOT NULL,
    issued_at        BIGINT  NOT NULL,
    redeem_by        BIGINT  NOT NULL,
    expires_at       BIGINT  NOT NULL,
    redeemed_at      BIGINT,
    last_seen_at     BIGINT,
    ended_at         BIGINT,
    ended_as         TEXT,
    due_at           BIGINT  NOT NULL,
    settled          BOOLEAN NOT NULL
);
CREATE INDEX sessions_due ON sessions (due_at) WHERE ended_at IS NULL;
CREATE INDEX sessions_seen ON sessions (last_seen_at) WHERE ended_at IS NULL AND redeemed_at IS NOT NULL;
CREATE INDEX sessions_unsettled ON sessions (ended_at) WHERE ended_at IS NOT NULL AND NOT settled;
CREATE INDEX sessions_settled ON sessions (ended_at) WHERE settled;
CREATE INDEX sessions_of_team ON sessions (team_id, id);
CREATE INDEX sessions_by_state ON sessions (team_id, ended_as, id);
CREATE INDEX sessions_live_of_endpoint ON sessions (endpoint_id) WHERE ended_at IS NULL;

-- The session of an idempotency key. The token is not stored: it is signed again from
-- the session.
CREATE TABLE session_keys (
    team_id         TEXT   NOT NULL,
    idempotency_key TEXT   NOT NULL,
    body_digest     TEXT   NOT NULL,
    session_id      TEXT   NOT NULL,
    created_at      BIGINT NOT NULL,
    PRIMARY KEY (team_id, idempotency_key)
);
CREATE INDEX session_keys_by_age ON session_keys (created_at);

-- number is the position of an action in its session, from 1; total_bytes is the size of
-- all actions up to it. They bound the actions of a session without reading them all.
CREATE TABLE browser_actions (
    session_id  TEXT   NOT NULL,
    message_id  TEXT   NOT NULL,
    happened_at BIGINT NOT NULL,
    action      TEXT   NOT NULL,
    number      BIGINT NOT NULL,
    total_bytes BIGINT NOT NULL,
    PRIMARY KEY (session_id, message_id)
);
CREATE INDEX browser_actions_by_number ON browser_actions (session_id, number);
