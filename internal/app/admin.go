package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/cache"
	"telapi/internal/calls"
	"telapi/internal/config"
	"telapi/internal/endpoint"
	"telapi/internal/media"
	"telapi/internal/ratelimit"
	"telapi/internal/redisconn"
	"telapi/internal/redisstore"
	"telapi/internal/speech"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/internal/telemetry"
	"telapi/internal/usage"
)

const (
	connectTimeout = 10 * time.Second // for connecting to a store
	commandTimeout = 5 * time.Second  // for one operation of the key-value store
)

// Admin gives administration commands access to the server's stores, even if no
// server is running.
type Admin struct {
	Teams     *team.Registry
	Keys      *auth.KeyRegistry
	Endpoints *endpoint.Service
	Limits    *ratelimit.Settings
	Usage     *usage.Service
	Audit     audit.Store
	Offline   bool // the key-value store is embedded and no server is running

	cfg    config.Config
	log    *slog.Logger
	stores stores
}

// OpenMode says whether a command creates a missing database.
type OpenMode string

// Modes of opening the stores.
const (
	Existing OpenMode = "existing" // fail if there is no database
	Create   OpenMode = "create"   // create a missing database in DATA_DIR
)

// OpenAdmin opens the stores, also next to a running server. The caller must call
// Close.
func OpenAdmin(ctx context.Context, cfg config.Config, w io.Writer, mode OpenMode) (*Admin, error) {
	var s stores
	log := commandLogger(cfg, w)
	err := checkDatabase(cfg, mode)
	if err == nil {
		err = s.openDatabase(cfg, log)
	}
	if err == nil {
		err = s.openKeyValueForCommand(cfg, log)
	}
	if err == nil {
		err = s.ensureSchema(ctx, cfg)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return newAdmin(cfg, s, log), nil
}

// checkDatabase returns an error if there is no database and mode is Existing.
func checkDatabase(cfg config.Config, mode OpenMode) error {
	if mode == Create || cfg.DatabaseURL != "" || sqlstore.Exists(cfg.DataDir) {
		return nil
	}
	return fmt.Errorf("no database in the data directory %s: change to the server's directory, or set DATA_DIR or DATABASE_URL as for the server. "+
		"telapi dev, telapi serve and telapi team create create one", cfg.DataDir)
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
		Endpoints: &endpoint.Service{Store: s.sql, Announce: kv, Now: time.Now},
		Limits:    ratelimit.NewSettings(kv, s.sql, log, nil),
		Usage:     &usage.Service{Store: s.sql, Now: time.Now},
		Audit:     s.sql,
		Offline:   s.kv == nil,
		cfg:       cfg,
		log:       log,
		stores:    s,
	}
}

// UsedToday returns the requests of a team on this UTC day, or nil if no server is
// running.
func (a *Admin) UsedToday(ctx context.Context, teamID string) (*int64, error) {
	if a.Offline {
		return nil, nil
	}
	used, err := ratelimit.UsedToday(ctx, a.stores.kv, teamID)
	if err != nil {
		return nil, err
	}
	return &used[0], nil
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

// CleanMedia removes unused blobs from the media service and calls report for each.
// With dryRun it removes nothing.
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
	cleaner := speech.NewCleaner(a.stores.sql, client, leases, a.cfg.MediaCacheRetention, a.log, prometheus.NewRegistry(), time.Now)
	return cleaner.Clean(ctx, dryRun, report)
}

// Migrate applies pending migrations, unless statusOnly is set, and returns the status.
func Migrate(ctx context.Context, cfg config.Config, log io.Writer, statusOnly bool) (sqlstore.Schema, error) {
	var s stores
	defer s.close()
	mode := map[bool]OpenMode{true: Existing, false: Create}[statusOnly]
	if err := checkDatabase(cfg, mode); err != nil {
		return sqlstore.Schema{}, err
	}
	if err := s.openDatabase(cfg, commandLogger(cfg, log)); err != nil {
		return sqlstore.Schema{}, err
	}
	schema, err := s.connect(ctx, cfg)
	if err == nil && !statusOnly {
		if err = s.sql.Migrate(ctx); err == nil {
			schema, err = s.sql.MigrationStatus(ctx)
		}
	}
	return schema, err
}

// commandLogger returns the logger of a command. Its level is LOG_LEVEL if that is
// set explicitly, and otherwise error: the command itself reports failures.
func commandLogger(cfg config.Config, w io.Writer) *slog.Logger {
	level := "error"
	if cfg.IsSet("LOG_LEVEL") {
		level = cfg.LogLevel
	}
	return telemetry.NewLogger(telemetry.Options{Level: level, Format: cfg.LogFormat, Writer: w, Color: cfg.Color, MSISDNDigits: cfg.MSISDNUnmaskedDigits})
}

// stores are the database and the key-value store.
type stores struct {
	closers
	sql *sqlstore.Store
	kv  *redisstore.Store // nil if it is embedded and no server is running
}

// openForServer opens the stores for a server and starts the embedded key-value
// store if REDIS_URL is not set. An unavailable store is not an error: connecting is
// retried in the background.
func (s *stores) openForServer(cfg config.Config, log *slog.Logger) error {
	if err := s.openDatabase(cfg, log); err != nil {
		return err
	}
	unlock, err := s.sql.LockServer()
	if err != nil {
		return err
	}
	s.onClose(unlock)
	opts, err := redisOptions(cfg, log)
	if err != nil {
		return err
	}
	if cfg.RedisURL == "" {
		embedded, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{
			DataDir: cfg.DataDir, MaxBytes: cfg.EmbeddedKVMaxBytes, KeepText: cfg.EnablePIILogging,
		}, log)
		if err != nil {
			return fmt.Errorf("start embedded key-value store: %w", err)
		}
		s.onClose(embedded.Close)
		opts = embedded.Options(log)
	}
	s.openKeyValue(opts)
	return nil
}

// join opens the stores of a running server.
func (s *stores) join(cfg config.Config, log *slog.Logger) error {
	err := s.openDatabase(cfg, log)
	if err == nil {
		err = s.openKeyValueForCommand(cfg, log)
	}
	if err == nil && s.kv == nil {
		err = redisstore.ErrNoServer
	}
	return err
}

// openKeyValueForCommand opens the key-value store for a command. It leaves kv nil if the
// store is embedded and no server is running.
func (s *stores) openKeyValueForCommand(cfg config.Config, log *slog.Logger) error {
	opts, err := redisOptions(cfg, log)
	if cfg.RedisURL == "" {
		opts, err = redisstore.Join(cfg.DataDir)
	}
	if errors.Is(err, redisstore.ErrNoServer) {
		return nil
	}
	if err != nil {
		return err
	}
	opts.Logger, opts.ConnectTimeout = log, commandTimeout
	s.openKeyValue(opts)
	return nil
}

func (s *stores) openKeyValue(opts redisstore.Options) {
	s.kv = redisstore.Open(opts)
	s.onClose(s.kv.Close)
}

func (s *stores) openDatabase(cfg config.Config, log *slog.Logger) (err error) {
	s.sql, err = sqlstore.Open(sqlstore.Options{DSN: cfg.DatabaseDSN(), DataDir: cfg.DataDir, Logger: log})
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	s.onClose(func() { _ = s.sql.Close() })
	return nil
}

func redisOptions(cfg config.Config, log *slog.Logger) (redisstore.Options, error) {
	redis, err := cfg.Redis()
	return redisstore.Options{RedisOptions: redis, Logger: log, MinReplicas: cfg.KVMinReplicas}, err
}

// ensureSchema creates the schema of an empty database. It does not upgrade an
// existing one: a read-only command must not break servers of an older version.
func (s *stores) ensureSchema(ctx context.Context, cfg config.Config) error {
	schema, err := s.connect(ctx, cfg)
	if err != nil {
		return err
	}
	if schema.Current > 0 && len(schema.Pending) > 0 {
		return fmt.Errorf("%s has an older schema: run telapi migrate, or restart the server", s.sql)
	}
	if err := s.sql.Migrate(ctx); err != nil {
		return fmt.Errorf("create the schema of %s: %w", s.sql, err)
	}
	return nil
}

// connect connects to the database and returns its schema.
func (s *stores) connect(ctx context.Context, cfg config.Config) (sqlstore.Schema, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	schema, err := s.sql.MigrationStatus(ctx)
	if err != nil {
		err = databaseError(s.sql, cfg, err)
	}
	return schema, err
}

// openMedia returns nil if no media service is configured.
func openMedia(cfg config.Config) (*media.Client, error) {
	if cfg.MediaCacheURL == "" {
		return nil, nil
	}
	roots, err := cfg.MediaCacheCAs()
	if err != nil {
		return nil, err
	}
	return media.NewClient(cfg.MediaCacheURL, cfg.MediaCacheToken, roots)
}

// OpenRuntime returns a call runtime for commands and the playground's feed.
func OpenRuntime(cfg config.Config) (*calls.Runtime, error) {
	store, err := runtimeStore(cfg)
	if err != nil {
		return nil, err
	}
	r, err := calls.New(calls.Options{Name: "telapi-operator", Store: store})
	if err != nil {
		return nil, keyValueError(err)
	}
	return r, nil
}

// ListChannels returns the live channels, the oldest first.
func ListChannels(ctx context.Context, cfg config.Config, log io.Writer) (list []redisstore.ChannelInfo, err error) {
	if _, err := runtimeStore(cfg); err != nil {
		return nil, err
	}
	var s stores
	defer s.close()
	if err := s.openKeyValueForCommand(cfg, commandLogger(cfg, log)); err != nil {
		return nil, err
	}
	connecting, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := s.kv.Connect(connecting); err != nil {
		return nil, keyValueError(err)
	}
	for c, err := range s.kv.List(ctx) {
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b redisstore.ChannelInfo) int { return a.OpenedAt.Compare(b.OpenedAt) })
	return list, nil
}

func runtimeStore(cfg config.Config) (rueidis.ClientOption, error) {
	if cfg.RedisURL == "" {
		store, err := calls.Locate("", cfg.DataDir)
		if err != nil {
			return store, fmt.Errorf("no server is running with the embedded stores in %s: start one with telapi dev or telapi serve, or set REDIS_URL", cfg.DataDir)
		}
		return store, nil
	}
	redis, err := cfg.Redis()
	return redisconn.ClientOption(redis), err
}
