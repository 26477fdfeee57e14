package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"maps"
	"slices"
	"time"

	"telapi/internal/speech"
)

var _ speech.Store = (*Store)(nil)

const (
	speechColumns = `hash, team_id, sentence, provider, voice, model, speed, sample_rate, variants, checksums, created_at, expires_at`

	selectSpeech = `SELECT ` + speechColumns + ` FROM tts_media_cache WHERE hash = $1`
	// Locks the row until the transaction ends, whether it was there or not.
	holdSpeech = `INSERT INTO tts_media_cache (` + speechColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT (hash) DO UPDATE SET hash = excluded.hash RETURNING ` + speechColumns
	lockSpeech    = `UPDATE tts_media_cache SET hash = hash WHERE hash = $1 RETURNING ` + speechColumns
	replaceSpeech = `UPDATE tts_media_cache SET variants = $2, checksums = $3, created_at = $4, expires_at = $5,
		ttl = (CAST($5 AS BIGINT) - CAST($4 AS BIGINT)) / 1000 WHERE hash = $1`
	deleteSpeech  = `DELETE FROM tts_media_cache WHERE hash = $1`
	speechAfter   = `SELECT ` + speechColumns + ` FROM tts_media_cache WHERE hash > $1 ORDER BY hash LIMIT $2`
	expiredSpeech = `SELECT ` + speechColumns + ` FROM tts_media_cache WHERE hash > $1 AND expires_at <= $3 ORDER BY hash LIMIT $2`
	removeExpired = `DELETE FROM tts_media_cache WHERE hash = $1 AND expires_at = $2`
)

func speechFields(r *speech.Recording) []any {
	return []any{
		&r.Hash, &r.TeamID, &r.Sentence, &r.Provider, &r.Voice, &r.Model, &r.Speed, &r.SampleRate,
		encodings{&r.Variants}, jsonOf(&r.Variants), moment{&r.CreatedAt}, moment{&r.ExpiresAt},
	}
}

// encodings is the list of a row's variants. It is there for others: telapi reads
// it from the checksums.
type encodings struct {
	of *map[speech.Encoding]string
}

func (e encodings) Value() (driver.Value, error) {
	names := slices.Sorted(maps.Keys(*e.of))
	return jsonOf(&names).Value()
}

func (encodings) Scan(any) error { return nil }

// Speech reads one row, whosever it is.
func (s *Store) Speech(ctx context.Context, hash string) (speech.Recording, error) {
	return one(ctx, s, "speech", speechFields, selectSpeech, hash)
}

// SaveSpeech adds variants to a row.
func (s *Store) SaveSpeech(ctx context.Context, r speech.Recording) (kept speech.Recording, err error) {
	err = s.together(ctx, "save speech", func(ctx context.Context, tx *sql.Tx) error {
		if !storable(speechFields(&r)) {
			return errNotStorable
		}
		if err := tx.QueryRowContext(ctx, holdSpeech, speechFields(&r)...).Scan(speechFields(&kept)...); err != nil {
			return err
		}
		if !kept.ExpiresAt.IsZero() && !kept.ExpiresAt.After(r.CreatedAt) {
			kept = r
		} else {
			maps.Copy(kept.Variants, r.Variants)
		}
		return replace(ctx, tx, kept)
	})
	return kept, err
}

// DeleteSpeechVariant removes a variant, and with the last one its row.
func (s *Store) DeleteSpeechVariant(ctx context.Context, hash string, e speech.Encoding, checksum string) error {
	return s.together(ctx, "drop speech", func(ctx context.Context, tx *sql.Tx) error {
		var r speech.Recording
		err := tx.QueryRowContext(ctx, lockSpeech, hash).Scan(speechFields(&r)...)
		if errors.Is(err, sql.ErrNoRows) || err == nil && r.Variants[e] != checksum {
			return nil
		}
		if err != nil {
			return err
		}
		if delete(r.Variants, e); len(r.Variants) > 0 {
			return replace(ctx, tx, r)
		}
		_, err = run(ctx, tx, deleteSpeech, hash)
		return err
	})
}

func replace(ctx context.Context, tx *sql.Tx, r speech.Recording) error {
	_, err := run(ctx, tx, replaceSpeech, r.Hash, encodings{&r.Variants}, jsonOf(&r.Variants), moment{&r.CreatedAt}, moment{&r.ExpiresAt})
	return err
}

// ListSpeech lists rows in order of hash, of which every database has the same
// idea: hashes are hex.
func (s *Store) ListSpeech(ctx context.Context, after string, expiredBy time.Time, limit int) ([]speech.Recording, error) {
	if expiredBy.IsZero() {
		return list(ctx, s, "speech", speechFields, speechAfter, after, limit)
	}
	return list(ctx, s, "speech", speechFields, expiredSpeech, after, limit, expiredBy.UnixMilli())
}

// DeleteExpiredSpeech removes a row that still expires when it did.
func (s *Store) DeleteExpiredSpeech(ctx context.Context, r speech.Recording) error {
	return s.changeAll(ctx, "remove expired speech", removeExpired, []any{r.Hash, r.ExpiresAt.UnixMilli()})
}
