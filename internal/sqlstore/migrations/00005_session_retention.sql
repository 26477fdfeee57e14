-- +goose Up

-- Sessions that can be deleted once they are old enough.
CREATE INDEX sessions_settled ON sessions (ended_at) WHERE settled;
