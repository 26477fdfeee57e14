-- +goose Up

-- What is known about sentences in the media cache; the audio itself is with the
-- media service. variants is a JSON list of encodings, checksums a JSON object
-- with the SHA-256 of each. ttl is in seconds.
CREATE TABLE tts_media_cache (
    hash        TEXT             NOT NULL PRIMARY KEY,
    team_id     TEXT             NOT NULL,
    sentence    TEXT             NOT NULL,
    provider    TEXT             NOT NULL,
    voice       TEXT             NOT NULL,
    model       TEXT             NOT NULL,
    speed       DOUBLE PRECISION NOT NULL,
    sample_rate INTEGER          NOT NULL,
    variants    TEXT             NOT NULL,
    checksums   TEXT             NOT NULL,
    ttl         BIGINT,
    created_at  BIGINT           NOT NULL,
    used_at     BIGINT           NOT NULL,
    expires_at  BIGINT
);
CREATE INDEX tts_media_cache_expiring ON tts_media_cache (expires_at) WHERE expires_at IS NOT NULL;
