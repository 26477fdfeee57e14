package app

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/internal/redisconn"
	"telapi/internal/redisstore"
	"telapi/internal/sqlstore"
)

// stores are the two places where state lives: the database, and the key-value
// store with, where nothing else is configured, the embedded engine behind it.
type stores struct {
	opened
	sql *sqlstore.Store
	kv  *redisstore.Store // nil: embedded, and no server runs it
}

// openServer opens the stores as the server does: it owns what is embedded. A
// store that is away is no error here; it is connected to later.
func (s *stores) openServer(cfg config.Config, log *slog.Logger) error {
	if err := s.openDatabase(cfg, log); err != nil {
		return err
	}
	unlock, err := s.sql.LockServer()
	if err != nil {
		return err
	}
	s.atEnd(unlock)
	opts, err := redisOptions(cfg)
	if err != nil {
		return err
	}
	opts.Logger = log
	if cfg.RedisURL == "" {
		embedded, err := redisstore.StartEmbedded(cfg.DataDir, log)
		if err != nil {
			return fmt.Errorf("start the embedded key-value store: %w", err)
		}
		s.atEnd(embedded.Close)
		opts = embedded.Options(log)
	}
	s.openKeyValue(opts)
	return nil
}

// join opens the stores as administration does, beside a running server.
func (s *stores) join(cfg config.Config, log *slog.Logger) error {
	if err := s.openDatabase(cfg, log); err != nil {
		return err
	}
	return s.joinKeyValue(cfg, log)
}

func (s *stores) joinKeyValue(cfg config.Config, log *slog.Logger) error {
	opts, err := redisOptions(cfg)
	if cfg.RedisURL == "" {
		opts, err = redisstore.Join(cfg.DataDir)
	}
	if errors.Is(err, redisstore.ErrNoServer) {
		return nil
	}
	if err != nil {
		return err
	}
	opts.Logger, opts.Patience = log, reachTimeout
	s.openKeyValue(opts)
	return nil
}

func (s *stores) openKeyValue(opts redisstore.Options) {
	s.kv = redisstore.Open(opts)
	s.atEnd(s.kv.Close)
}

func (s *stores) openDatabase(cfg config.Config, log *slog.Logger) (err error) {
	s.sql, err = sqlstore.Open(sqlstore.Options{DSN: cfg.DatabaseDSN(), DataDir: cfg.DataDir, Logger: log})
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	s.atEnd(func() { _ = s.sql.Close() })
	return nil
}

func redisOptions(cfg config.Config) (redisstore.Options, error) {
	r, err := cfg.Redis()
	return redisstore.Options{RedisOptions: r}, err
}

func openMedia(cfg config.Config) (*media.Client, error) {
	if cfg.MediaCacheURL == "" {
		return nil, nil //nolint:nilnil // no media service is a way to run
	}
	roots, err := cfg.MediaCacheCAs()
	if err != nil {
		return nil, err
	}
	return media.NewClient(cfg.MediaCacheURL, cfg.MediaCacheToken, roots)
}

// OpenRuntime gives an operator the call runtime's access to the store this
// configuration points at.
func OpenRuntime(cfg config.Config) (*callruntime.Runtime, error) {
	store, err := runtimeStore(cfg)
	if err != nil {
		return nil, err
	}
	return callruntime.New(callruntime.Options{Name: "telapi-operator", Store: store})
}

func runtimeStore(cfg config.Config) (rueidis.ClientOption, error) {
	if cfg.RedisURL == "" {
		store, err := callruntime.Locate("", cfg.DataDir)
		if err != nil {
			return store, fmt.Errorf("no server runs on the embedded stores of %s: start one with telapi dev or telapi serve, or set REDIS_URL", cfg.DataDir)
		}
		return store, nil
	}
	r, err := cfg.Redis()
	return redisconn.ClientOption(r), err
}
