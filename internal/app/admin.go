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

const (
	connectTimeout = 10 * time.Second // until a store is connected
	commandTimeout = 5 * time.Second  // of one operation of the key-value store
)

// Admin gives administration commands access to the server's stores, even if no
// server is running.
type Admin struct {
	Teams     *team.Registry
	Keys      *auth.KeyRegistry
	Endpoints *endpoint.Service
	Limits    *ratelimit.Settings
	Usage     *usage.Reporter
	Offline   bool // the embedded stores are in use and no server is running

	cfg    config.Config
	log    *slog.Logger
	stores stores
}

// OpenAdmin opens the stores, also next to a running server. The caller must call
// Close.
func OpenAdmin(ctx context.Context, cfg config.Config, w io.Writer) (*Admin, error) {
	var s stores
	log := toolLogger(cfg, w)
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err := s.openDatabase(cfg, log)
	if err == nil {
		err = s.joinKeyValue(cfg, log)
	}
	if err == nil {
		err = s.prepareDatabase(ctx)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return newAdmin(cfg, s, log), nil
}

// prepareDatabase creates the schema of an empty database. It does not upgrade an
// existing one: a read-only command must not break servers of an older version.
func (s *stores) prepareDatabase(ctx context.Context) error {
	schema, err := s.sql.MigrationStatus(ctx)
	if err == nil && schema.Current > 0 && len(schema.Pending) > 0 {
		err = errors.New("schema is outdated: run telapi migrate")
	}
	if err == nil {
		err = s.sql.Migrate(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.sql, err)
	}
	return nil
}

// Admin returns access to this server's stores.
func (a *App) Admin() *Admin { return newAdmin(a.cfg, a.stores, a.log) }

func newAdmin(cfg config.Config, s stores, log *slog.Logger) *Admin {
	var kv interface {
		cache.Announcer
		ratelimit.LimitsStore
	} = s.kv
	if s.kv == nil {
		kv = offlineStore{s.sql}
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

// Close closes the stores.
func (a *Admin) Close() { a.stores.close() }

// offlineStore replaces the embedded key-value store while no server is running.
// There are no caches to invalidate, and the next server loads the limits from
// their copy in the database.
type offlineStore struct{ mirror ratelimit.Mirror }

func (offlineStore) Announce(context.Context, string) error { return nil }

func (s offlineStore) Limits(ctx context.Context) ([]byte, bool, error) {
	return s.mirror.Setting(ctx, ratelimit.SettingName)
}

func (offlineStore) SaveLimits(context.Context, []byte, []byte) (bool, error) { return true, nil }

// CleanMedia cleans up the media cache and reports each removal. With dryRun it
// removes nothing.
func (a *Admin) CleanMedia(ctx context.Context, dryRun bool, report func(speech.Removal)) error {
	client, err := openMedia(a.cfg)
	if err != nil {
		return err
	}
	if client == nil {
		return errors.New("media service not configured: set TTS_MEDIA_CACHE_BASE_URL as for the server")
	}
	defer client.Close()
	var leases speech.Leases
	if a.stores.kv != nil {
		leases = redisstore.NewLeases(a.stores.kv)
	}
	cleaner := speech.NewCleaner(a.stores.sql, client, leases, a.log, prometheus.NewRegistry(), time.Now)
	return cleaner.Clean(ctx, dryRun, report)
}

// Migrate applies pending migrations, unless statusOnly is set, and returns the status.
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

// toolLogger returns the logger of a command: it logs warnings unless LOG_LEVEL is set.
func toolLogger(cfg config.Config, w io.Writer) *slog.Logger {
	level := "warn"
	if cfg.IsSet("LOG_LEVEL") {
		level = cfg.LogLevel
	}
	return telemetry.NewLogger(telemetry.Options{Level: level, Format: cfg.LogFormat, Writer: w, MSISDNDigits: cfg.MSISDNUnmaskedDigits})
}
