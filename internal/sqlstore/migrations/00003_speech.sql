-- +goose Up

-- The recordings of the media cache; the media service has the audio. variants is a JSON
-- list of encodings, checksums a JSON object with the SHA-256 of each. ttl is in seconds.
-- used_at is when a recording was last requested, to the hour: recordings without an
-- expiry are deleted if they are not requested for TTS_MEDIA_CACHE_RETENTION.
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
    expires_at  BIGINT,
    used_at     BIGINT
);
CREATE INDEX tts_media_cache_expiring ON tts_media_cache (expires_at) WHERE expires_at IS NOT NULL;

-- Usage per day and value of one property (provider, voice, model or endpoint), and with the
-- property '' per day. It has no foreign keys: it outlives its endpoint.
CREATE TABLE usage_totals (
    team_id           TEXT   NOT NULL,
    property          TEXT   NOT NULL,
    day               TEXT   NOT NULL,
    value             TEXT   NOT NULL,
    characters        BIGINT NOT NULL,
    cached_characters BIGINT NOT NULL,
    requests          BIGINT NOT NULL,
    PRIMARY KEY (team_id, property, day, value)
);

-- The reports that usage_totals contains, so that none is counted twice.
CREATE TABLE usage_reports (
    id         TEXT   NOT NULL PRIMARY KEY,
    counted_at BIGINT NOT NULL
);
CREATE INDEX usage_reports_by_age ON usage_reports (counted_at);
