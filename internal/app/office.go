package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"telapi/internal/auth"
	"telapi/internal/config"
	"telapi/internal/endpoint"
	"telapi/internal/ratelimit"
	"telapi/internal/team"
)

// connectTimeout is how long an administrator waits for a store.
const connectTimeout = 10 * time.Second

// Office is what administration works with: the domain's registries on the
// server's stores, whether or not a server is running.
type Office struct {
	Teams     *team.Registry
	Keys      *auth.Keyring
	Endpoints *endpoint.Registry
	Limits    *ratelimit.Settings
	// Alone says that no server runs on the embedded stores, so that there
	// is nobody to announce a change to.
	Alone bool

	stores *stores
}

// OpenOffice opens the stores beside a running server, if there is one. The
// caller closes the office.
func OpenOffice(ctx context.Context, cfg config.Config, w io.Writer) (*Office, error) {
	log := toolLogger(cfg, w)
	s, err := joinStores(cfg, log)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := s.sql.Connect(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if s.kv == nil {
		return newOffice(s, nobody{s.sql}, log, true), nil
	}
	if err := s.kv.Connect(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("connect to the key-value store: %w", err)
	}
	return newOffice(s, s.kv, log, false), nil
}

// Office is the administration of this server itself.
func (a *App) Office() *Office { return newOffice(a.stores, a.stores.kv, a.log, false) }

// announcing is what the registries ask of the key-value store.
type announcing interface {
	auth.Announcer
	ratelimit.LimitsStore
}

func newOffice(s *stores, kv announcing, log *slog.Logger, alone bool) *Office {
	return &Office{
		Teams:     team.NewRegistry(s.sql, kv, time.Now),
		Keys:      auth.NewKeyring(s.sql, kv, time.Now),
		Endpoints: endpoint.NewRegistry(s.sql, time.Now),
		Limits:    ratelimit.NewSettings(kv, s.sql, log, nil),
		Alone:     alone,
		stores:    s,
	}
}

// Close lets go of the stores.
func (o *Office) Close() { o.stores.close() }

// nobody stands in for the key-value store while no server runs on the
// embedded one: there is no cache to drop, and limits live in their mirror, from
// which the next server restores them.
type nobody struct{ mirror ratelimit.Mirror }

func (nobody) Announce(context.Context, string) error { return nil }

func (n nobody) Limits(ctx context.Context) ([]byte, bool, error) {
	return n.mirror.Setting(ctx, ratelimit.SettingName)
}

func (nobody) SaveLimits(context.Context, []byte) error { return nil }

func (nobody) RestoreLimits(context.Context, []byte) error { return nil }
