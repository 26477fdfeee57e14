package sqlstore

import (
	"cmp"
	"context"
	"slices"

	"telapi/internal/session"
)

var _ session.ActionStore = (*Store)(nil)

const insertBrowserAction = `INSERT INTO browser_actions (session_id, message_id, happened_at, action) VALUES ($1, $2, $3, $4)
	ON CONFLICT (session_id, message_id) DO NOTHING`

// AddBrowserActions keeps actions, each once.
func (s *Store) AddBrowserActions(ctx context.Context, actions []session.Action) error {
	actions = slices.SortedStableFunc(slices.Values(actions), func(a, b session.Action) int {
		return cmp.Or(cmp.Compare(a.SessionID, b.SessionID), cmp.Compare(a.MessageID, b.MessageID))
	})
	sets := make([][]any, len(actions))
	for i, a := range actions {
		sets[i] = []any{a.SessionID, a.MessageID, a.At.UnixMilli(), string(a.JSON)}
	}
	return s.changeAll(ctx, "keep browser actions", insertBrowserAction, sets...)
}
