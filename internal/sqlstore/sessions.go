package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
	"telapi/internal/session"
)

var _ session.SweepStore = (*Store)(nil)

const (
	issuedColumns = `id, team_id, endpoint_id, mode, identity, metadata, duplicate_policy, token_id, issued_at, redeem_by, expires_at`

	sessionColumns = issuedColumns + `, redeemed_at, last_seen_at, ended_at, ended_as`

	insertSession = `INSERT INTO sessions (` + issuedColumns + `, due_at, settled)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $10, FALSE)`
	selectSession = `SELECT ` + sessionColumns + ` FROM sessions WHERE id = $1`
	redeemSession = `UPDATE sessions SET redeemed_at = COALESCE(redeemed_at, $2), due_at = expires_at, last_seen_at = $2
		WHERE id = $1 AND ended_at IS NULL AND due_at > $2 RETURNING ` + sessionColumns
	endSession = `UPDATE sessions SET ended_at = $2, ended_as = $3
		WHERE id = $1 AND ended_at IS NULL AND COALESCE(last_seen_at, 0) < $4`
	settleSession = `UPDATE sessions SET settled = TRUE WHERE id = $1`
	touchSession  = `UPDATE sessions SET last_seen_at = $2 WHERE id = $1 AND ended_at IS NULL AND (last_seen_at IS NULL OR last_seen_at < $2)`

	// Whoever comes second waits for the first and finds the rows ended.
	expireSessions = `UPDATE sessions SET ended_at = $1, ended_as = $2 WHERE ended_at IS NULL AND id IN
		(SELECT id FROM sessions WHERE ended_at IS NULL AND due_at <= $1 ORDER BY due_at LIMIT $3) RETURNING id`
	staleSessions = `SELECT ` + sessionColumns + ` FROM sessions
		WHERE ended_at IS NULL AND redeemed_at IS NOT NULL AND last_seen_at < $1 AND id > $2 ORDER BY id LIMIT $3`
	unsettledSessions = `SELECT ` + sessionColumns + ` FROM sessions
		WHERE ended_at IS NOT NULL AND NOT settled AND ended_at < $1 ORDER BY ended_at LIMIT $2`

	// A twin under way holds the row: this waits for it. A receipt that is too
	// old is replaced.
	insertReceipt = `INSERT INTO session_keys (team_id, idempotency_key, body_digest, session_id, created_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (team_id, idempotency_key) DO UPDATE SET
			body_digest = excluded.body_digest, session_id = excluded.session_id, created_at = excluded.created_at
		WHERE session_keys.created_at <= $6`
	selectReceipt = `SELECT body_digest, session_id, created_at FROM session_keys
		WHERE team_id = $1 AND idempotency_key = $2 AND created_at > $3`
	deleteReceipts = `DELETE FROM session_keys WHERE created_at < $1`
	deleteSessions = `DELETE FROM sessions WHERE id IN
		(SELECT id FROM sessions WHERE settled AND ended_at < $1 ORDER BY ended_at LIMIT $2) RETURNING id`
	deleteActions = `DELETE FROM browser_actions WHERE session_id = $1`
)

// CreateSession adds a new session and the receipt of its idempotency key, if any.
func (s *Store) CreateSession(ctx context.Context, made session.Session, r session.Receipt, staleBefore time.Time) (created bool, err error) {
	var identity *string
	if made.Identity != nil {
		encoded, err := json.Marshal(made.Identity)
		if err != nil {
			return false, fmt.Errorf("encode identity: %w", err)
		}
		identity = new(string(encoded))
	}
	var metadata *string
	if made.Metadata != nil {
		metadata = new(string(made.Metadata))
	}
	args := []any{
		made.ID, made.TeamID, made.EndpointID, made.Mode, identity, metadata, made.DuplicatePolicy, made.TokenID,
		millis(made.IssuedAt), millis(made.RedeemBy), millis(made.ExpiresAt),
	}
	if r.Key == "" {
		err := s.change(ctx, "create", "session", insertSession, args...)
		return err == nil, err
	}
	err = s.together(ctx, "create session", func(ctx context.Context, tx *sql.Tx) error {
		if !storable(args) {
			return errNotStorable
		}
		result, err := tx.ExecContext(ctx, insertReceipt, made.TeamID, r.Key, r.Digest, made.ID, r.At.UnixMilli(), staleBefore.UnixMilli())
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return err
		}
		created = true
		_, err = tx.ExecContext(ctx, insertSession, args...)
		return refused(err, "session")
	})
	return created && err == nil, err
}

// SessionByKey finds the session that an idempotency key stands for.
func (s *Store) SessionByKey(ctx context.Context, teamID, key string, staleBefore time.Time) (session.Session, session.Receipt, error) {
	var id string
	r, err := one(ctx, s, "request", func(r row) (found session.Receipt, err error) {
		var created *int64
		err = r.Scan(&found.Digest, &id, &created)
		found.Key, found.At = key, moment(created)
		return found, err
	}, selectReceipt, teamID, key, staleBefore.UnixMilli())
	if err != nil {
		return session.Session{}, session.Receipt{}, err
	}
	found, err := s.Session(ctx, id)
	return found, r, err
}

// Session reads one session, whosever it is.
func (s *Store) Session(ctx context.Context, id string) (session.Session, error) {
	return one(ctx, s, "session", scanSession, selectSession, id)
}

// RedeemSession notes a redemption, if the session still goes on.
func (s *Store) RedeemSession(ctx context.Context, id string, at time.Time) (session.Session, error) {
	return one(ctx, s, "session", scanSession, redeemSession, id, at.UnixMilli())
}

// EndSession ends a session, if nobody has.
func (s *Store) EndSession(ctx context.Context, id string, as session.State, at, unseenSince time.Time) (bool, error) {
	latest := int64(math.MaxInt64)
	if !unseenSince.IsZero() {
		latest = unseenSince.UnixMilli()
	}
	err := s.change(ctx, "end", "session", endSession, id, at.UnixMilli(), as, latest)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// SettleSessions notes that everybody was told of the end of these.
func (s *Store) SettleSessions(ctx context.Context, ids []string) error {
	sets := make([][]any, len(ids))
	for i, id := range slices.Sorted(slices.Values(ids)) {
		sets[i] = []any{id}
	}
	return s.changeAll(ctx, "settle sessions", settleSession, sets)
}

// ExpireSessions ends sessions that are due and returns those it ended itself.
func (s *Store) ExpireSessions(ctx context.Context, now time.Time, limit int) ([]string, error) {
	return list(ctx, s, "sessions to expire", scanID, expireSessions, now.UnixMilli(), session.Expired, limit)
}

// StaleSessions lists a page of redeemed sessions that were not seen since.
func (s *Store) StaleSessions(ctx context.Context, unseenSince time.Time, after string, limit int) ([]session.Session, error) {
	return list(ctx, s, "stale sessions", scanSession, staleSessions, unseenSince.UnixMilli(), after, limit)
}

// UnsettledSessions lists ended sessions whose end was not told.
func (s *Store) UnsettledSessions(ctx context.Context, endedBefore time.Time, limit int) ([]session.Session, error) {
	return list(ctx, s, "unsettled sessions", scanSession, unsettledSessions, endedBefore.UnixMilli(), limit)
}

// TouchSessions notes when browsers were last seen.
func (s *Store) TouchSessions(ctx context.Context, seen map[string]time.Time) error {
	sets := make([][]any, 0, len(seen))
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		sets = append(sets, []any{id, seen[id].UnixMilli()})
	}
	return s.changeAll(ctx, "note when sessions were seen", touchSession, sets)
}

// Forget deletes old receipts and some of the sessions that ended long ago.
func (s *Store) Forget(ctx context.Context, keysBefore, endedBefore time.Time, limit int) error {
	return s.together(ctx, "forget sessions", func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, deleteReceipts, keysBefore.UnixMilli()); err != nil {
			return err
		}
		ids, err := collect(ctx, tx, scanID, deleteSessions, endedBefore.UnixMilli(), limit)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if _, err := tx.ExecContext(ctx, deleteActions, id); err != nil {
				return err
			}
		}
		return nil
	})
}

func scanSession(r row) (found session.Session, err error) {
	var identity, metadata, endedAs *string
	var issued, redeemBy, expires, redeemed, seen, ended *int64
	err = r.Scan(&found.ID, &found.TeamID, &found.EndpointID, &found.Mode, &identity, &metadata, &found.DuplicatePolicy, &found.TokenID,
		&issued, &redeemBy, &expires, &redeemed, &seen, &ended, &endedAs)
	if err != nil {
		return found, err
	}
	if identity != nil {
		if err := json.Unmarshal([]byte(*identity), &found.Identity); err != nil {
			return found, fmt.Errorf("the identity of session %s is damaged: %w", found.ID, err)
		}
	}
	if metadata != nil {
		found.Metadata = jsontext.Value(*metadata)
	}
	found.EndedAs = session.State(*cmp.Or(endedAs, new(string)))
	found.IssuedAt, found.RedeemBy, found.ExpiresAt = moment(issued), moment(redeemBy), moment(expires)
	found.RedeemedAt, found.LastSeenAt, found.EndedAt = moment(redeemed), moment(seen), moment(ended)
	return found, nil
}
