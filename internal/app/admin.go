package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/auth"
	"telapi/internal/cache"
	"telapi/internal/config"
	"telapi/internal/endpoint"
	"telapi/internal/ratelimit"
	"telapi/internal/redisstore"
	"telapi/internal/speech"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/internal/telemetry"
	"telapi/internal/usage"
)

// How long an administrator waits for the database, and, with commands that come
// to it, for the key-value store.
const (
	connectTimeout = 10 * time.Second
	reachTimeout   = 5 * time.Second
)

// Admin is what administration works with: the domain's registries on the
// server's stores, whether or not a server is running.
type Admin struct {
	Teams     *team.Registry
	Keys      *auth.KeyRegistry
	Endpoints *endpoint.Service
	Limits    *ratelimit.Settings
	Usage     *usage.Reporter
	// Offline says that no server runs on the embedded stores, so that there
	// is nobody to announce a change to.
	Offline bool

	cfg    config.Config
	log    *slog.Logger
	stores stores
}

// OpenAdmin opens the stores beside a running server, if there is one. The
// caller closes the admin.
func OpenAdmin(ctx context.Context, cfg config.Config, w io.Writer) (*Admin, error) {
	var s stores
	log := toolLogger(cfg, w)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err := s.join(cfg, log)
	if err == nil {
		err = s.prepareDatabase(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return newAdmin(cfg, s, log), nil
}

// prepareDatabase makes an empty database usable, and leaves one that needs an
// upgrade alone: a mere question must not cut off servers of the older version.
func (s *stores) prepareDatabase(ctx context.Context) error {
	schema, err := s.sql.MigrationStatus(ctx)
	if err == nil && schema.Current > 0 && len(schema.Pending) > 0 {
		err = errors.New("its schema is older than this program; bring it up to date with telapi migrate")
	}
	if err == nil {
		err = s.sql.Migrate(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.sql, err)
	}
	return nil
}

// Admin is the administration of this server itself.
func (a *App) Admin() *Admin { return newAdmin(a.cfg, a.stores, a.log) }

// announcing is what the registries ask of the key-value store.
type announcing interface {
	cache.Announcer
	ratelimit.LimitsStore
}

func newAdmin(cfg config.Config, s stores, log *slog.Logger) *Admin {
	var kv announcing = s.kv
	if s.kv == nil {
		kv = nobody{s.sql}
	}
	return &Admin{
		Teams:     &team.Registry{Store: s.sql, Announce: kv, Now: time.Now},
		Keys:      &auth.KeyRegistry{Store: s.sql, Announce: kv, Now: time.Now},
		Endpoints: &endpoint.Service{Store: s.sql, Now: time.Now},
		Limits:    ratelimit.NewSettings(kv, s.sql, log, nil),
		Usage:     &usage.Reporter{Store: s.sql, Now: time.Now},
		Offline:   s.kv == nil,
		cfg:       cfg,
		log:       log,
		stores:    s,
	}
}

// Close lets go of the stores.
func (a *Admin) Close() { a.stores.close() }

// nobody stands in for the key-value store while no server runs on the
// embedded one: there is no cache to drop, and limits live in their mirror, from
// which the next server restores them.
type nobody struct{ mirror ratelimit.Mirror }

func (nobody) Announce(context.Context, string) error { return nil }

func (n nobody) Limits(ctx context.Context) ([]byte, bool, error) {
	return n.mirror.Setting(ctx, ratelimit.SettingName)
}

func (nobody) SaveLimits(context.Context, []byte, []byte) (bool, error) { return true, nil }

// CleanMedia has an operator's cleanup of the media cache done, or only told.
func (a *Admin) CleanMedia(ctx context.Context, dryRun bool, tell func(speech.Removal)) error {
	client, err := openMedia(a.cfg)
	if err != nil {
		return err
	}
	if client == nil {
		return errors.New("no media service is configured: set TTS_MEDIA_CACHE_BASE_URL as for the server")
	}
	defer client.Close()
	var leases speech.Leases
	if a.stores.kv != nil {
		leases = redisstore.NewLeases(a.stores.kv)
	}
	cleaner := speech.NewCleaner(a.stores.sql, client, leases, a.log, prometheus.NewRegistry(), time.Now)
	return cleaner.Clean(ctx, dryRun, tell)
}

// Migrate brings the schema up to date, unless only its status is asked for.
func Migrate(ctx context.Context, cfg config.Config, log io.Writer, statusOnly bool) (sqlstore.Schema, error) {
	var s stores
	defer s.close()
	if err := s.openDatabase(cfg, toolLogger(cfg, log)); err != nil {
		return sqlstore.Schema{}, err
	}
	if !statusOnly {
		if err := s.sql.Migrate(ctx); err != nil {
			return sqlstore.Schema{}, fmt.Errorf("migrate: %w", err)
		}
	}
	return s.sql.MigrationStatus(ctx)
}

// toolLogger is the log of a short command: warnings on stderr, unless
// LOG_LEVEL asks for more.
func toolLogger(cfg config.Config, w io.Writer) *slog.Logger {
	level := "warn"
	if cfg.IsSet("LOG_LEVEL") {
		level = cfg.LogLevel
	}
	return telemetry.NewLogger(telemetry.Options{Level: level, Format: cfg.LogFormat, Writer: w, MSISDNDigits: cfg.MSISDNUnmaskedDigits})
}
