package sqlstore

import (
	"context"
	"time"

	"telapi/internal/fault"
	"telapi/internal/ratelimit"
)

var _ ratelimit.Mirror = (*Store)(nil)

const (
	selectSetting = `SELECT value FROM settings WHERE name = $1`
	saveSetting   = `INSERT INTO settings (name, value, updated_at) VALUES ($1, $2, $3)
		ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at`
)

// Setting returns a named value. ok is false if it was never saved.
func (s *Store) Setting(ctx context.Context, name string) (value []byte, ok bool, err error) {
	value, err = get(ctx, s, "setting", column[[]byte], selectSetting, name)
	if fault.Is(err, fault.NotFound) {
		return nil, false, nil
	}
	return value, err == nil, err
}

// SaveSetting stores a named value. The value must be text.
func (s *Store) SaveSetting(ctx context.Context, name string, value []byte) error {
	return s.exec(ctx, "save", "setting", saveSetting, name, string(value), time.Now().UnixMilli())
}
