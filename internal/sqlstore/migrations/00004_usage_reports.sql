-- +goose Up

-- Reports of speech that are in the account, so that none is added twice.
CREATE TABLE usage_reports (
    id         TEXT   NOT NULL PRIMARY KEY,
    counted_at BIGINT NOT NULL
);
CREATE INDEX usage_reports_by_age ON usage_reports (counted_at);
