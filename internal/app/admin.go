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

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/cache"
	"telapi/internal/calls"
	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/internal/ratelimit"
	"telapi/internal/redisstore"
	"telapi/internal/speech"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/internal/telemetry"
)

// storeTimeout is how long a command of telapi waits for a connection to a store, and for one
// operation of the key-value store.
const storeTimeout = 5 * time.Second

// Admin gives administration commands access to the server's stores, even if no
// server is running.
type Admin struct {
	Teams     *team.Registry
	Keys      *auth.KeyRegistry
	Endpoints *team.EndpointRegistry
	Limits    *ratelimit.Settings
	Usage     speech.UsageStore
	Audit     audit.Store
	Offline   bool // the key-value store is embedded and no server is running

	cfg    config.Config
	log    *slog.Logger
	stores stores
}

// OpenMode says whether a missing database is created.
type OpenMode string

// Modes of opening the stores.
const (
	Existing OpenMode = "existing" // fail if there is no database
	Create   OpenMode = "create"   // create a missing database in DATA_DIR
)

// OpenAdmin opens the stores, whether or not a server is running. The caller must call
// Close.
func OpenAdmin(ctx context.Context, cfg config.Config, w io.Writer, mode OpenMode) (*Admin, error) {
	if err := checkDatabase(cfg, mode); err != nil {
		return nil, err
	}
	var s stores
	log := toolLogger(cfg, w)
	err := s.join(cfg, log)
	if err == nil || errors.Is(err, redisstore.ErrNoServer) { // without a server, newAdmin uses an offlineStore
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
		"telapi dev, telapi serve, telapi migrate, 'telapi team create' and 'telapi limits set' each create a database", cfg.DataDir)
}

// Admin returns access to this server's stores.
func (a *App) Admin() *Admin { return newAdmin(a.cfg, a.stores, a.log) }

func newAdmin(cfg config.Config, s stores, log *slog.Logger) *Admin {
	var store interface {
		cache.Announcer
		ratelimit.LimitsStore
	} = offlineStore{s.sql}
	if s.kv != nil {
		store = s.kv
	}
	return &Admin{
		Teams:     &team.Registry{Store: s.sql, Announcer: store, Now: time.Now},
		Keys:      &auth.KeyRegistry{Store: s.sql, Announcer: store, Now: time.Now},
		Endpoints: &team.EndpointRegistry{Store: s.sql, Announcer: store, Now: time.Now},
		Limits:    ratelimit.NewSettings(store, s.sql, log, nil),
		Usage:     s.sql,
		Audit:     s.sql,
		Offline:   s.kv == nil,
		cfg:       cfg,
		log:       log,
		stores:    s,
	}
}

// UsedToday returns the requests of a team on this UTC day, or nil if no server is running.
// It counts permits that instances have taken but not used yet.
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

// offlineStore replaces the embedded key-value store while no server is running. It has
// no caches to invalidate. It need not save limits: ratelimit.Settings also saves them in
// the mirror, from which the next server loads them.
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
func Migrate(ctx context.Context, cfg config.Config, w io.Writer, statusOnly bool) (sqlstore.SchemaStatus, error) {
	var s stores
	defer s.close()
	if statusOnly {
		if err := checkDatabase(cfg, Existing); err != nil {
			return sqlstore.SchemaStatus{}, err
		}
	}
	if err := s.openDatabase(cfg, toolLogger(cfg, w)); err != nil {
		return sqlstore.SchemaStatus{}, err
	}
	schema, err := s.schemaStatus(ctx, cfg)
	if err == nil && !statusOnly {
		if err = s.sql.Migrate(ctx); err == nil {
			schema, err = s.sql.SchemaStatus(ctx)
		}
	}
	return schema, err
}

// toolLogger returns the logger of a command of telapi. Its level is LOG_LEVEL if that is
// set explicitly, and otherwise error: the command itself reports failures.
func toolLogger(cfg config.Config, w io.Writer) *slog.Logger {
	if !cfg.IsSet("LOG_LEVEL") {
		cfg.LogLevel = "error"
	}
	return telemetry.NewLogger(cfg, w)
}

// OpenRuntime returns a call runtime for the commands of telapi.
func OpenRuntime(cfg config.Config) (*calls.Runtime, error) {
	opts, err := locateKeyValue(cfg, nil)
	if err != nil {
		return nil, noServerError(cfg, err)
	}
	r, err := calls.New(calls.Options{Name: "telapi-operator", Store: kv.ClientOption(opts.RedisOptions)})
	if err != nil {
		return nil, keyValueError(err)
	}
	return r, nil
}

// ListChannels returns the live channels, the oldest first.
func ListChannels(ctx context.Context, cfg config.Config, w io.Writer) (list []redisstore.ChannelInfo, err error) {
	var s stores
	defer s.close()
	if err := s.openRunningKeyValue(cfg, toolLogger(cfg, w)); err != nil {
		return nil, noServerError(cfg, err)
	}
	connecting, cancel := context.WithTimeout(ctx, storeTimeout)
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
