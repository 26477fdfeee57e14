-- +goose Up

-- When a sentence was last asked for is known to the media service, which makes
-- room by it; here nothing ever read it. No release has had the column, so that
-- nothing older than this can miss it.
ALTER TABLE tts_media_cache DROP COLUMN used_at;
