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

// Setting reads a named value; ok is false when there is none.
func (s *Store) Setting(ctx context.Context, name string) (value []byte, ok bool, err error) {
	value, err = one(ctx, s, "setting", itself[[]byte], selectSetting, name)
	if fault.Is(err, fault.NotFound) {
		return nil, false, nil
	}
	return value, err == nil, err
}

// SaveSetting stores a named value, which must be text.
func (s *Store) SaveSetting(ctx context.Context, name string, value []byte) error {
	return s.change(ctx, "save", "setting", saveSetting, name, string(value), time.Now().UnixMilli())
}
