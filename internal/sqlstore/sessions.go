package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/internal/session"
)

const (
	// issuedColumns are set when a session is created.
	issuedColumns = `id, team_id, endpoint_id, mode, identity, metadata, duplicate_policy, token_id, issued_at, redeem_by, expires_at`

	sessionColumns = issuedColumns + `, redeemed_at, last_seen_at, ended_at, COALESCE(ended_as, '')`

	// due_at is when the session expires: first redeem_by, then expires_at.
	insertSession = `INSERT INTO sessions (` + issuedColumns + `, due_at, settled)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $10, FALSE)`

	// Statements for one session check ended_as and not ended_at: PostgreSQL may choose
	// an index of sessions that have not ended (WHERE ended_at IS NULL) instead of the
	// primary key, and scan it whole, if there were few of them when it planned.
	redeemSession = `UPDATE sessions SET redeemed_at = COALESCE(redeemed_at, $2), due_at = expires_at, last_seen_at = $2
		WHERE id = $1 AND ended_as IS NULL AND due_at > $2
			AND NOT EXISTS (SELECT 1 FROM teams WHERE teams.id = sessions.team_id AND teams.disabled)`
	endSession   = `UPDATE sessions SET ended_at = $2, ended_as = $3, settled = $4 WHERE id = $1 AND ended_as IS NULL`
	touchSession = `UPDATE sessions SET last_seen_at = $2 WHERE id = $1 AND ended_as IS NULL AND (last_seen_at IS NULL OR last_seen_at < $2)`

	overdueSessions = `SELECT id FROM sessions WHERE ended_at IS NULL AND due_at <= $1
		UNION ALL SELECT id FROM sessions WHERE ended_at IS NULL AND redeemed_at IS NOT NULL AND last_seen_at < $2 LIMIT $3`
	// Checks the conditions again: the browser may have reconnected since
	// overdueSessions ran, or another instance may have ended the session.
	expireSession = `UPDATE sessions SET ended_at = $2, ended_as = $4
		WHERE id = $1 AND ended_as IS NULL AND (due_at <= $2 OR last_seen_at < $3)`
	staleSessions = `SELECT id FROM sessions
		WHERE ended_at IS NULL AND redeemed_at IS NOT NULL AND last_seen_at < $1 AND id > $2 ORDER BY id LIMIT $3`
	unsettledSessions = `SELECT ` + sessionColumns + ` FROM sessions
		WHERE ended_at IS NOT NULL AND NOT settled AND ended_at < $1 ORDER BY ended_at LIMIT $2`

	// Waits for a concurrent request with the same key, which locks the row.
	// Replaces an expired record.
	insertKeyRecord = `INSERT INTO session_keys (team_id, idempotency_key, body_digest, session_id, created_at) VALUES ($1, $2, $3, $4, $5)
		ON CONFLICT (team_id, idempotency_key) DO UPDATE SET
			body_digest = excluded.body_digest, session_id = excluded.session_id, created_at = excluded.created_at
		WHERE session_keys.created_at <= $6`
	selectKeyRecord = `SELECT session_id, body_digest FROM session_keys
		WHERE team_id = $1 AND idempotency_key = $2 AND created_at > $3`
	deleteSessions = `DELETE FROM sessions WHERE id IN
		(SELECT id FROM sessions WHERE settled AND ended_at < $1 ORDER BY ended_at LIMIT $2) RETURNING id`
	// Inserts nothing if the session already has $6 actions, or would exceed $7 bytes.
	insertAction = `INSERT INTO browser_actions (session_id, message_id, happened_at, action, number, total_bytes)
		SELECT $1, $2, CAST($3 AS BIGINT), $4, newest.number + 1, newest.total_bytes + CAST($5 AS BIGINT) FROM (SELECT
			COALESCE((SELECT number FROM browser_actions WHERE session_id = $1 ORDER BY number DESC LIMIT 1), 0) AS number,
			COALESCE((SELECT total_bytes FROM browser_actions WHERE session_id = $1 ORDER BY number DESC LIMIT 1), 0) AS total_bytes
		) AS newest WHERE newest.number < CAST($6 AS BIGINT) AND newest.total_bytes + CAST($5 AS BIGINT) <= CAST($7 AS BIGINT)
		ON CONFLICT (session_id, message_id) DO NOTHING`
)

func issuedFields(s *session.Session) []any {
	return []any{
		&s.ID, &s.TeamID, &s.EndpointID, &s.Mode, asJSON(&s.Identity), asJSON(&s.Metadata), &s.DuplicatePolicy, &s.TokenID,
		timestamp{&s.IssuedAt}, timestamp{&s.RedeemBy}, timestamp{&s.ExpiresAt},
	}
}

func sessionFields(s *session.Session) []any {
	return append(issuedFields(s), timestamp{&s.RedeemedAt}, timestamp{&s.LastSeenAt}, timestamp{&s.EndedAt}, &s.EndedAs)
}

// CreateSession adds a session and its idempotency record, if any. It returns false
// if the key has a record that was created after staleBefore.
func (s *Store) CreateSession(ctx context.Context, added session.Session, r session.IdempotencyRecord, staleBefore time.Time) (created bool, err error) {
	if r.Key == "" {
		err := s.exec(ctx, "create", "session", nil, insertSession, issuedFields(&added)...)
		return err == nil, err
	}
	err = s.inTx(ctx, "create session", func(ctx context.Context, tx *sql.Tx) error {
		inserted, err := execRows(ctx, tx, insertKeyRecord, added.TeamID, r.Key, r.Digest, added.ID, r.At.UnixMilli(), staleBefore.UnixMilli())
		if err != nil || inserted == 0 {
			return err
		}
		created = true
		_, err = execRows(ctx, tx, insertSession, issuedFields(&added)...)
		return constraintError(err, "session")
	})
	return created && err == nil, err
}

// SessionByKey returns the session that was created with an idempotency key.
func (s *Store) SessionByKey(ctx context.Context, teamID, key string, staleBefore time.Time) (found session.Session, bodyDigest string, err error) {
	type record struct{ sessionID, digest string }
	r, err := get(ctx, s, "request", func(r *record) []any { return []any{&r.sessionID, &r.digest} },
		selectKeyRecord, teamID, key, staleBefore.UnixMilli())
	if err == nil {
		found, err = s.Session(ctx, r.sessionID)
	}
	return found, r.digest, err
}

// Session returns a session of any team.
func (s *Store) Session(ctx context.Context, id string) (session.Session, error) {
	return get(ctx, s, "session", sessionFields, `SELECT `+sessionColumns+` FROM sessions WHERE id = $1`, id)
}

// liveRedeemed is the condition for sessions that are connected or disconnected: the database
// does not know which.
const liveRedeemed = ` AND ended_as IS NULL AND redeemed_at IS NOT NULL AND due_at > $2`

// stateConditions select the sessions in a state at the time $2.
var stateConditions = map[session.State]string{
	session.Issued:       ` AND ended_as IS NULL AND redeemed_at IS NULL AND due_at > $2`,
	session.Connected:    liveRedeemed,
	session.Disconnected: liveRedeemed,
	session.Ended:        ` AND ended_as = 'ended'`,
	session.Expired:      ` AND (ended_as = 'expired' OR ended_as IS NULL AND due_at <= $2)`,
	session.Revoked:      ` AND ended_as = 'revoked'`,
}

// Sessions implements session.Store.
func (s *Store) Sessions(ctx context.Context, q session.Query) ([]session.Session, error) {
	teamID, _ := q.Teams.Team()
	return list(ctx, s, "sessions", sessionFields, listSessions(q), teamID, q.Now.UnixMilli(), q.After, q.Limit)
}

// listSessions returns a query that uses all its parameters, because PostgreSQL needs
// their types.
func listSessions(q session.Query) string {
	after := `$3 = ''`
	if q.After != "" {
		after = `id < $3`
	}
	return `SELECT ` + sessionColumns + ` FROM sessions WHERE ` + teamsCondition(q.Teams) + ` AND CAST($2 AS BIGINT) > 0 AND ` + after + stateConditions[q.State] +
		` ORDER BY id DESC LIMIT $4`
}

// RedeemSession records that a call token was used, unless the session has ended or
// expired, or its team is disabled.
func (s *Store) RedeemSession(ctx context.Context, id string, at time.Time) error {
	return s.exec(ctx, "redeem", "session", nil, redeemSession, id, at.UnixMilli())
}

// EndSession ends a session. It returns false if the session has already ended.
func (s *Store) EndSession(ctx context.Context, id string, as session.State, at time.Time, entries ...audit.Entry) (bool, error) {
	err := s.exec(ctx, "end", "session", entries, endSession, id, at.UnixMilli(), as, as == session.Ended)
	if fault.Is(err, fault.NotFound) {
		return false, nil
	}
	return err == nil, err
}

// SettleSessions marks ended sessions whose channels have ended too.
func (s *Store) SettleSessions(ctx context.Context, ids []string) error {
	sets := make([][]any, len(ids))
	for i, id := range slices.Sorted(slices.Values(ids)) {
		sets[i] = []any{id}
	}
	_, err := s.execBatch(ctx, "settle sessions", `UPDATE sessions SET settled = TRUE WHERE id = $1`, sets...)
	return err
}

// ExpireSessions ends expired and idle sessions and returns their IDs, except those
// that another instance ended first. Like all batches, it locks rows in the order of
// their IDs, so that concurrent batches cannot deadlock.
func (s *Store) ExpireSessions(ctx context.Context, now, unseenSince time.Time, limit int) (ended []string, err error) {
	overdue, err := list(ctx, s, "sessions to expire", column[string], overdueSessions, now.UnixMilli(), unseenSince.UnixMilli(), limit)
	if err != nil || len(overdue) == 0 {
		return nil, err
	}
	err = s.inTx(ctx, "expire sessions", func(ctx context.Context, tx *sql.Tx) error {
		for _, id := range slices.Sorted(slices.Values(overdue)) {
			changed, err := execRows(ctx, tx, expireSession, id, now.UnixMilli(), unseenSince.UnixMilli(), session.Expired)
			if err != nil {
				return err
			}
			if changed > 0 {
				ended = append(ended, id)
			}
		}
		return nil
	})
	return ended, err
}

// StaleSessions returns a page of redeemed sessions last seen before unseenSince.
func (s *Store) StaleSessions(ctx context.Context, unseenSince time.Time, after string, limit int) ([]string, error) {
	return list(ctx, s, "stale sessions", column[string], staleSessions, unseenSince.UnixMilli(), after, limit)
}

// UnsettledSessions returns ended sessions that are not settled.
func (s *Store) UnsettledSessions(ctx context.Context, endedBefore time.Time, limit int) ([]session.Session, error) {
	return list(ctx, s, "unsettled sessions", sessionFields, unsettledSessions, endedBefore.UnixMilli(), limit)
}

// TouchSessions stores when sessions were last seen.
func (s *Store) TouchSessions(ctx context.Context, seen map[string]time.Time) error {
	return s.touch(ctx, "update last seen of sessions", touchSession, seen)
}

// PruneSessions deletes old idempotency records, and up to limit settled sessions
// that ended before endedBefore.
func (s *Store) PruneSessions(ctx context.Context, keysBefore, endedBefore time.Time, limit int) error {
	return s.inTx(ctx, "prune sessions", func(ctx context.Context, tx *sql.Tx) error {
		if _, err := execRows(ctx, tx, `DELETE FROM session_keys WHERE created_at < $1`, keysBefore.UnixMilli()); err != nil {
			return err
		}
		ids, err := queryAll(ctx, tx, column[string], deleteSessions, endedBefore.UnixMilli(), limit)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if _, err := execRows(ctx, tx, `DELETE FROM browser_actions WHERE session_id = $1`, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// AddBrowserActions stores actions and ignores those already stored. It returns
// the number of actions that exceed the limits of their session.
func (s *Store) AddBrowserActions(ctx context.Context, actions []session.Action) (excess int, err error) {
	actions = slices.SortedStableFunc(slices.Values(actions), func(a, b session.Action) int {
		return cmp.Or(cmp.Compare(a.SessionID, b.SessionID), cmp.Compare(a.MessageID, b.MessageID))
	})
	sets := make([][]any, len(actions))
	for i, a := range actions {
		sets[i] = []any{a.SessionID, a.MessageID, a.At.UnixMilli(), string(a.JSON), len(a.JSON), session.MaxActions, session.MaxActionsBytes}
	}
	stored, err := s.execBatch(ctx, "add browser actions", insertAction, sets...)
	if err != nil || stored == int64(len(actions)) {
		return 0, err
	}
	// An action that was not stored is repeated in actions, was stored by an earlier call, or exceeds the limits.
	actions = slices.CompactFunc(actions, func(a, b session.Action) bool { return a.SessionID == b.SessionID && a.MessageID == b.MessageID })
	var args []any
	for _, a := range actions {
		args = append(args, a.SessionID, a.MessageID)
	}
	found, err := get(ctx, s, "browser actions", column[int], "WITH ids (session_id, message_id) AS (VALUES "+placeholders(len(actions), 2)+
		") SELECT COUNT(*) FROM ids JOIN browser_actions USING (session_id, message_id)", args...)
	if err != nil {
		return 0, err
	}
	return len(actions) - found, nil
}
