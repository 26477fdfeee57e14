package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/fault"
	"telapi/internal/speech"
)

var (
	_ speech.Rows        = (*Store)(nil)
	_ speech.CleanupRows = (*Store)(nil)
)

const (
	speechColumns = `hash, team_id, sentence, provider, voice, model, speed, sample_rate, variants, checksums, ttl, created_at, used_at, expires_at`

	selectSpeech = `SELECT ` + speechColumns + ` FROM tts_media_cache WHERE hash = $1`
	// Locks the row until the transaction ends, whether it was there or not.
	holdSpeech = `INSERT INTO tts_media_cache (` + speechColumns + `) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
		ON CONFLICT (hash) DO UPDATE SET used_at = excluded.used_at RETURNING ` + speechColumns
	lockSpeech    = `UPDATE tts_media_cache SET used_at = used_at WHERE hash = $1 RETURNING ` + speechColumns
	replaceSpeech = `UPDATE tts_media_cache SET variants = $2, checksums = $3, ttl = $4, created_at = $5, expires_at = $6 WHERE hash = $1`
	deleteSpeech  = `DELETE FROM tts_media_cache WHERE hash = $1`
	speechAfter   = `SELECT ` + speechColumns + ` FROM tts_media_cache WHERE hash > $1 ORDER BY hash LIMIT $2`
	expiredSpeech = `SELECT ` + speechColumns + ` FROM tts_media_cache WHERE hash > $1 AND expires_at <= $3 ORDER BY hash LIMIT $2`
	removeExpired = `DELETE FROM tts_media_cache WHERE hash = $1 AND expires_at = $2`
	touchSpeech   = `UPDATE tts_media_cache SET used_at = $2 WHERE hash = $1`
)

// Speech reads one row, whosever it is.
func (s *Store) Speech(ctx context.Context, hash string) (speech.Row, error) {
	return one(ctx, s, "speech", scanSpeech, selectSpeech, hash)
}

// SaveSpeech adds variants to a row.
func (s *Store) SaveSpeech(ctx context.Context, r speech.Row) (kept speech.Row, err error) {
	variants, checksums, err := encodeVariants(r.Variants)
	if err != nil {
		return kept, err
	}
	args := []any{
		r.Hash, r.TeamID, r.Sentence, r.Provider, r.Voice, r.Model, r.Speed, r.SampleRate, variants, checksums,
		seconds(r.TTL), millis(r.CreatedAt), millis(r.UsedAt), millis(r.ExpiresAt),
	}
	if !storable(args) {
		return kept, errNotStorable
	}
	err = s.together(ctx, "save speech", func(ctx context.Context, tx *sql.Tx) error {
		if kept, err = scanSpeech(tx.QueryRowContext(ctx, holdSpeech, args...)); err != nil {
			return err
		}
		if !kept.ExpiresAt.IsZero() && !kept.ExpiresAt.After(r.CreatedAt) {
			kept = r
		} else {
			kept.Variants = slices.DeleteFunc(kept.Variants, func(v speech.Variant) bool {
				_, replaced := r.Variant(v.Encoding)
				return replaced
			})
			kept.Variants = append(kept.Variants, r.Variants...)
		}
		return replace(ctx, tx, kept)
	})
	return kept, err
}

// DropSpeech removes a variant, and with the last one its row.
func (s *Store) DropSpeech(ctx context.Context, hash string, v speech.Variant) error {
	return s.together(ctx, "drop speech", func(ctx context.Context, tx *sql.Tx) error {
		r, err := scanSpeech(tx.QueryRowContext(ctx, lockSpeech, hash))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		r.Variants = slices.DeleteFunc(r.Variants, func(have speech.Variant) bool { return have == v })
		if len(r.Variants) == 0 {
			_, err = tx.ExecContext(ctx, deleteSpeech, hash)
			return err
		}
		return replace(ctx, tx, r)
	})
}

// TouchSpeech notes a use.
func (s *Store) TouchSpeech(ctx context.Context, hash string, at time.Time) error {
	if err := s.change(ctx, "touch", "speech", touchSpeech, hash, millis(at)); !fault.Is(err, fault.NotFound) {
		return err
	}
	return nil // dropped since
}

// SpeechAfter lists rows in order of hash, of which every database has the same
// idea: hashes are hex.
func (s *Store) SpeechAfter(ctx context.Context, after string, expiredBy time.Time, limit int) ([]speech.Row, error) {
	if expiredBy.IsZero() {
		return list(ctx, s, "speech", scanSpeech, speechAfter, after, limit)
	}
	return list(ctx, s, "speech", scanSpeech, expiredSpeech, after, limit, millis(expiredBy))
}

// RemoveExpired removes a row that still expires when it did.
func (s *Store) RemoveExpired(ctx context.Context, r speech.Row) error {
	if err := s.change(ctx, "remove", "speech", removeExpired, r.Hash, millis(r.ExpiresAt)); !fault.Is(err, fault.NotFound) {
		return err
	}
	return nil // renewed since, or gone
}

func replace(ctx context.Context, tx *sql.Tx, r speech.Row) error {
	variants, checksums, err := encodeVariants(r.Variants)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, replaceSpeech, r.Hash, variants, checksums, seconds(r.TTL), millis(r.CreatedAt), millis(r.ExpiresAt))
	return err
}

func encodeVariants(list []speech.Variant) (variants, checksums string, err error) {
	encodings, sums := make([]speech.Encoding, len(list)), map[speech.Encoding]string{}
	for i, v := range list {
		encodings[i], sums[v.Encoding] = v.Encoding, v.Checksum
	}
	a, errA := json.Marshal(encodings)
	b, errB := json.Marshal(sums, json.Deterministic(true))
	if err := errors.Join(errA, errB); err != nil {
		return "", "", fmt.Errorf("encode variants: %w", err)
	}
	return string(a), string(b), nil
}

func scanSpeech(r row) (found speech.Row, err error) {
	var variants, checksums string
	var ttl, created, used, expires *int64
	if err := r.Scan(&found.Hash, &found.TeamID, &found.Sentence, &found.Provider, &found.Voice, &found.Model, &found.Speed,
		&found.SampleRate, &variants, &checksums, &ttl, &created, &used, &expires); err != nil {
		return found, err
	}
	var encodings []speech.Encoding
	var sums map[speech.Encoding]string
	if err := errors.Join(json.Unmarshal([]byte(variants), &encodings), json.Unmarshal([]byte(checksums), &sums)); err != nil {
		return found, fmt.Errorf("speech %s is damaged: %w", found.Hash, err)
	}
	for _, e := range encodings {
		found.Variants = append(found.Variants, speech.Variant{Encoding: e, Checksum: sums[e]})
	}
	if ttl != nil {
		found.TTL = time.Duration(*ttl) * time.Second
	}
	found.CreatedAt, found.UsedAt, found.ExpiresAt = moment(created), moment(used), moment(expires)
	return found, nil
}

// seconds is a duration as it is stored: NULL for none.
func seconds(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	s := int64(d / time.Second)
	return &s
}
