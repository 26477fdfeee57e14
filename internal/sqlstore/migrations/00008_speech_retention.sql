-- +goose Up

-- When a recording was last requested, to the hour. Recordings without an expiry are
-- deleted when they were not requested for TTS_MEDIA_CACHE_RETENTION.
ALTER TABLE tts_media_cache ADD COLUMN used_at BIGINT;
