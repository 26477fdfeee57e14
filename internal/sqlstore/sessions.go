package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"telapi/internal/fault"
	"telapi/internal/session"
)

var (
	_ session.SweeperStore = (*Store)(nil)
	_ session.ActionStore  = (*Store)(nil)
)

const (
	issuedColumns = `id, team_id, endpoint_id, mode, identity, metadata, duplicate_policy, token_id, issued_at, redeem_by, expires_at`

	sessionColumns = issuedColumns + `, redeemed_at, last_seen_at, ended_at, COALESCE(ended_as, '')`

	insertSession = `INSERT INTO sessions (` + issuedColumns + `, due_at, settled)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $10, FALSE)`
	selectSession = `SELECT ` + sessionColumns + ` FROM sessions WHERE id = $1`
	redeemSession = `UPDATE sessions SET redeemed_at = COALESCE(redeemed_at, $2), due_at = expires_at, last_seen_at = $2
		WHERE id = $1 AND ended_at IS NULL AND due_at > $2`
	endSession    = `UPDATE sessions SET ended_at = $2, ended_as = $3 WHERE id = $1 AND ended_at IS NULL`
	settleSession = `UPDATE sessions SET settled = TRUE WHERE id = $1`
	touchSession  = `UPDATE sessions SET last_seen_at = $2 WHERE id = $1 AND ended_at IS NULL AND (last_seen_at IS NULL OR last_seen_at < $2)`

	overdueSessions = `SELECT id FROM sessions WHERE ended_at IS NULL AND due_at <= $1
		UNION ALL SELECT id FROM sessions WHERE ended_at IS NULL AND redeemed_at IS NOT NULL AND last_seen_at < $2 LIMIT $3`
	// Asked once more: a browser may have come back since, or another instance
	// may have ended it.
	expireSession = `UPDATE sessions SET ended_at = $2, ended_as = $4
		WHERE id = $1 AND ended_at IS NULL AND (due_at <= $2 OR last_seen_at < $3)`
	staleSessions = `SELECT id FROM sessions
		WHERE ended_at IS NULL AND redeemed_at IS NOT NULL AND last_seen_at < $1 AND id > $2 ORDER BY id LIMIT $3`
	unsettledSessions = `SELECT ` + sessionColumns + ` FROM sessions
		WHERE ended_at IS NOT NULL AND NOT settled AND ended_at < $1 ORDER BY ended_at LIMIT $2`

	// A twin under way holds the row: this waits for it. A receipt that is too
	// old is replaced.
	insertReceipt = `INSERT INTO session_keys (team_id, idempotency_key, body_digest, session_id, created_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (team_id, idempotency_key) DO UPDATE SET
			body_digest = excluded.body_digest, session_id = excluded.session_id, created_at = excluded.created_at
		WHERE session_keys.created_at <= $6`
	selectReceipt = `SELECT session_id, body_digest FROM session_keys
		WHERE team_id = $1 AND idempotency_key = $2 AND created_at > $3`
	deleteReceipts = `DELETE FROM session_keys WHERE created_at < $1`
	deleteSessions = `DELETE FROM sessions WHERE id IN
		(SELECT id FROM sessions WHERE settled AND ended_at < $1 ORDER BY ended_at LIMIT $2) RETURNING id`
	deleteActions = `DELETE FROM browser_actions WHERE session_id = $1`
	insertAction  = `INSERT INTO browser_actions (session_id, message_id, happened_at, action) VALUES ($1, $2, $3, $4)
		ON CONFLICT (session_id, message_id) DO NOTHING`
)

// issued is how many of a session's fields are there from its start.
const issued = 11

func sessionFields(s *session.Session) []any {
	return []any{
		&s.ID, &s.TeamID, &s.EndpointID, &s.Mode, jsonOf(&s.Identity), jsonOf(&s.Metadata), &s.DuplicatePolicy, &s.TokenID,
		moment{&s.IssuedAt}, moment{&s.RedeemBy}, moment{&s.ExpiresAt},
		moment{&s.RedeemedAt}, moment{&s.LastSeenAt}, moment{&s.EndedAt}, &s.EndedAs,
	}
}

// CreateSession adds a new session and the receipt of its idempotency key, if any.
func (s *Store) CreateSession(ctx context.Context, made session.Session, r session.IdempotencyRecord, staleBefore time.Time) (created bool, err error) {
	args := sessionFields(&made)[:issued]
	if r.Key == "" {
		err := s.change(ctx, "create", "session", insertSession, args...)
		return err == nil, err
	}
	err = s.together(ctx, "create session", func(ctx context.Context, tx *sql.Tx) error {
		fresh, err := run(ctx, tx, insertReceipt, made.TeamID, r.Key, r.Digest, made.ID, r.At.UnixMilli(), staleBefore.UnixMilli())
		if err != nil || fresh == 0 {
			return err
		}
		created = true
		_, err = run(ctx, tx, insertSession, args...)
		return refused(err, "session")
	})
	return created && err == nil, err
}

// SessionByKey finds the session that an idempotency key stands for.
func (s *Store) SessionByKey(ctx context.Context, teamID, key string, staleBefore time.Time) (found session.Session, bodyDigest string, err error) {
	type receipt struct{ id, digest string }
	r, err := one(ctx, s, "request", func(r *receipt) []any { return []any{&r.id, &r.digest} },
		selectReceipt, teamID, key, staleBefore.UnixMilli())
	if err == nil {
		found, err = s.Session(ctx, r.id)
	}
	return found, r.digest, err
}

// Session reads one session, whosever it is.
func (s *Store) Session(ctx context.Context, id string) (session.Session, error) {
	return one(ctx, s, "session", sessionFields, selectSession, id)
}

// RedeemSession notes a redemption, if the session still goes on.
func (s *Store) RedeemSession(ctx context.Context, id string, at time.Time) error {
	return s.change(ctx, "redeem", "session", redeemSession, id, at.UnixMilli())
}

// EndSession ends a session, if nobody has.
func (s *Store) EndSession(ctx context.Context, id string, as session.State, at time.Time) (bool, error) {
	err := s.change(ctx, "end", "session", endSession, id, at.UnixMilli(), as)
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
	return s.changeAll(ctx, "settle sessions", settleSession, sets...)
}

// ExpireSessions ends sessions that are due or idle and returns those it ended
// itself, one after the other in the order in which all others lock them.
func (s *Store) ExpireSessions(ctx context.Context, now, unseenSince time.Time, limit int) (ended []string, err error) {
	overdue, err := list(ctx, s, "sessions to expire", itself[string], overdueSessions, now.UnixMilli(), unseenSince.UnixMilli(), limit)
	if err != nil || len(overdue) == 0 {
		return nil, err
	}
	err = s.together(ctx, "expire sessions", func(ctx context.Context, tx *sql.Tx) error {
		for _, id := range slices.Sorted(slices.Values(overdue)) {
			changed, err := run(ctx, tx, expireSession, id, now.UnixMilli(), unseenSince.UnixMilli(), session.Expired)
			if err != nil {
				return err
			}
			if changed > 0 {
				ended = append(ended, id)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return ended, nil
}

// StaleSessions lists a page of redeemed sessions that were not seen since.
func (s *Store) StaleSessions(ctx context.Context, unseenSince time.Time, after string, limit int) ([]string, error) {
	return list(ctx, s, "stale sessions", itself[string], staleSessions, unseenSince.UnixMilli(), after, limit)
}

// UnsettledSessions lists ended sessions whose end was not told.
func (s *Store) UnsettledSessions(ctx context.Context, endedBefore time.Time, limit int) ([]session.Session, error) {
	return list(ctx, s, "unsettled sessions", sessionFields, unsettledSessions, endedBefore.UnixMilli(), limit)
}

// TouchSessions notes when browsers were last seen.
func (s *Store) TouchSessions(ctx context.Context, seen map[string]time.Time) error {
	return s.touch(ctx, "note when sessions were seen", touchSession, seen)
}

// PruneSessions deletes old receipts and some of the sessions that ended long ago.
func (s *Store) PruneSessions(ctx context.Context, keysBefore, endedBefore time.Time, limit int) error {
	return s.together(ctx, "forget sessions", func(ctx context.Context, tx *sql.Tx) error {
		if _, err := run(ctx, tx, deleteReceipts, keysBefore.UnixMilli()); err != nil {
			return err
		}
		ids, err := collect(ctx, tx, itself[string], deleteSessions, endedBefore.UnixMilli(), limit)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if _, err := run(ctx, tx, deleteActions, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// AddBrowserActions keeps actions, each once.
func (s *Store) AddBrowserActions(ctx context.Context, actions []session.Action) error {
	actions = slices.SortedStableFunc(slices.Values(actions), func(a, b session.Action) int {
		return cmp.Or(cmp.Compare(a.SessionID, b.SessionID), cmp.Compare(a.MessageID, b.MessageID))
	})
	sets := make([][]any, len(actions))
	for i, a := range actions {
		sets[i] = []any{a.SessionID, a.MessageID, a.At.UnixMilli(), string(a.JSON)}
	}
	return s.changeAll(ctx, "keep browser actions", insertAction, sets...)
}
