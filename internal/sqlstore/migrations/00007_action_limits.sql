-- +goose Up

-- Position of an action in its session, from 1, and the size of all actions up to
-- it. They bound the actions of a session without reading them all.
ALTER TABLE browser_actions ADD COLUMN number BIGINT NOT NULL DEFAULT 0;
ALTER TABLE browser_actions ADD COLUMN total_bytes BIGINT NOT NULL DEFAULT 0;
CREATE INDEX browser_actions_by_number ON browser_actions (session_id, number);
