package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"maps"
	"slices"
	"time"

	"telapi/internal/fault"
	"telapi/internal/speech"
)

// The table of recordings is tts_media_cache, and the text of a recording is its
// column sentence. Other applications read it under these names.
const (
	recordingColumns = `hash, team_id, sentence, provider, voice, model, speed, sample_rate, variants, checksums, created_at, used_at, expires_at`

	// Inserts the row or locks the existing one until the transaction ends.
	insertRecording = `INSERT INTO tts_media_cache (` + recordingColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
		ON CONFLICT (hash) DO UPDATE SET hash = excluded.hash RETURNING ` + recordingColumns
	lockRecording   = `UPDATE tts_media_cache SET hash = hash WHERE hash = $1 RETURNING ` + recordingColumns
	updateRecording = `UPDATE tts_media_cache SET variants = $2, checksums = $3, created_at = $4, expires_at = $5, used_at = $6,
		ttl = (CAST($5 AS BIGINT) - CAST($4 AS BIGINT)) / 1000 WHERE hash = $1`
	recordingsAfter   = `SELECT ` + recordingColumns + ` FROM tts_media_cache WHERE hash > $1 ORDER BY hash LIMIT $2`
	expiredRecordings = `SELECT ` + recordingColumns + ` FROM tts_media_cache WHERE hash > $1 AND expires_at <= $3 ORDER BY hash LIMIT $2`
	unusedRecordings  = `SELECT ` + recordingColumns + ` FROM tts_media_cache
		WHERE hash > $1 AND expires_at IS NULL AND created_at <= $3 AND COALESCE(used_at, 0) <= $3 ORDER BY hash LIMIT $2`
	deleteUnchanged = `DELETE FROM tts_media_cache WHERE hash = $1
		AND COALESCE(expires_at, 0) = COALESCE(CAST($2 AS BIGINT), 0) AND COALESCE(used_at, 0) = COALESCE(CAST($3 AS BIGINT), 0)`
)

func recordingFields(r *speech.Recording) []any {
	return []any{
		&r.Hash, &r.TeamID, &r.Text, &r.Provider, &r.Voice, &r.Model, &r.Speed, &r.SampleRate,
		encodings{&r.Variants}, asJSON(&r.Variants), timestamp{&r.CreatedAt}, timestamp{&r.UsedAt}, timestamp{&r.ExpiresAt},
	}
}

// encodings writes the column variants, which other applications read. telapi
// ignores it: the keys of the checksums are the same names.
type encodings struct{ variants *map[speech.Encoding]string }

func (e encodings) Value() (driver.Value, error) {
	names := slices.Sorted(maps.Keys(*e.variants))
	return asJSON(&names).Value()
}

func (encodings) Scan(any) error { return nil }

// Recording implements speech.Store.
func (s *Store) Recording(ctx context.Context, hash string) (speech.Recording, error) {
	return get(ctx, s, "recording", recordingFields, `SELECT `+recordingColumns+` FROM tts_media_cache WHERE hash = $1`, hash)
}

// SaveRecording implements speech.Store.
func (s *Store) SaveRecording(ctx context.Context, r speech.Recording) (saved speech.Recording, err error) {
	err = s.inTx(ctx, "save recording", func(ctx context.Context, tx *sql.Tx) (err error) {
		if !validText(recordingFields(&r)) { // queryRow would return NOT_FOUND
			return errInvalidText
		}
		saved, err = queryRow(ctx, tx, "recording", recordingFields, insertRecording, recordingFields(&r)...)
		if err != nil {
			return err
		}
		if !saved.ExpiresAt.IsZero() && !saved.ExpiresAt.After(r.CreatedAt) {
			saved = r // replaces an expired recording
		} else {
			maps.Copy(saved.Variants, r.Variants)
			saved.UsedAt = r.UsedAt
		}
		return writeVariants(ctx, tx, saved)
	})
	return saved, err
}

// DeleteVariant implements speech.Store.
func (s *Store) DeleteVariant(ctx context.Context, hash string, e speech.Encoding, checksum string) error {
	return s.inTx(ctx, "delete variant of recording", func(ctx context.Context, tx *sql.Tx) error {
		r, err := queryRow(ctx, tx, "recording", recordingFields, lockRecording, hash)
		switch {
		case fault.Is(err, fault.NotFound):
			return nil
		case err != nil:
			return err
		case r.Variants[e] != checksum: // was replaced
			return nil
		}
		delete(r.Variants, e)
		if len(r.Variants) == 0 {
			_, err = execRows(ctx, tx, `DELETE FROM tts_media_cache WHERE hash = $1`, hash)
			return err
		}
		return writeVariants(ctx, tx, r)
	})
}

// writeVariants writes what updateRecording sets: the variants and times.
func writeVariants(ctx context.Context, tx *sql.Tx, r speech.Recording) error {
	_, err := execRows(ctx, tx, updateRecording, r.Hash, encodings{&r.Variants}, asJSON(&r.Variants), timestamp{&r.CreatedAt}, timestamp{&r.ExpiresAt}, timestamp{&r.UsedAt})
	return err
}

// ListRecordings implements speech.Store. Hashes are hex, which all databases sort
// alike.
func (s *Store) ListRecordings(ctx context.Context, filter speech.RecordingFilter, after string, limit int) ([]speech.Recording, error) {
	query, args := recordingsAfter, []any{after, limit}
	switch {
	case !filter.ExpiredBy.IsZero():
		query, args = expiredRecordings, append(args, filter.ExpiredBy.UnixMilli())
	case !filter.UnusedSince.IsZero():
		query, args = unusedRecordings, append(args, filter.UnusedSince.UnixMilli())
	}
	return list(ctx, s, "recordings", recordingFields, query, args...)
}

// TouchRecording implements speech.Store.
func (s *Store) TouchRecording(ctx context.Context, hash string, usedAt time.Time) error {
	return s.touch(ctx, "touch recording", `UPDATE tts_media_cache SET used_at = $2 WHERE hash = $1`, map[string]time.Time{hash: usedAt})
}

// DeleteUnchangedRecording implements speech.Store. A recording that is already gone is
// not an error.
func (s *Store) DeleteUnchangedRecording(ctx context.Context, r speech.Recording) error {
	_, err := s.execBatch(ctx, "delete recording", deleteUnchanged, []any{r.Hash, timestamp{&r.ExpiresAt}, timestamp{&r.UsedAt}})
	return err
}
