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

// stores are the database and the key-value store.
type stores struct {
	closers
	sql *sqlstore.Store
	kv  *redisstore.Store // nil if embedded and no server is running
}

// openServer opens the stores for a server, which runs the embedded ones. An
// unavailable store is not an error: connecting is retried in the background.
func (s *stores) openServer(cfg config.Config, log *slog.Logger) error {
	if err := s.openDatabase(cfg, log); err != nil {
		return err
	}
	unlock, err := s.sql.LockServer()
	if err != nil {
		return err
	}
	s.onClose(unlock)
	opts, err := redisOptions(cfg)
	if err != nil {
		return err
	}
	opts.Logger = log
	if cfg.RedisURL == "" {
		embedded, err := redisstore.StartEmbedded(cfg.DataDir, log)
		if err != nil {
			return fmt.Errorf("start embedded key-value store: %w", err)
		}
		s.onClose(embedded.Close)
		opts = embedded.Options(log)
	}
	s.openKeyValue(opts)
	return nil
}

// joinKeyValue opens the key-value store for a command. It leaves kv nil if the
// store is embedded and no server is running.
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

func redisOptions(cfg config.Config) (redisstore.Options, error) {
	r, err := cfg.Redis()
	return redisstore.Options{RedisOptions: r}, err
}

func openMedia(cfg config.Config) (*media.Client, error) {
	if cfg.MediaCacheURL == "" {
		return nil, nil //nolint:nilnil // the media service is optional
	}
	roots, err := cfg.MediaCacheCAs()
	if err != nil {
		return nil, err
	}
	return media.NewClient(cfg.MediaCacheURL, cfg.MediaCacheToken, roots)
}

// OpenRuntime opens the key-value store as a call runtime, for operators.
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
			return store, fmt.Errorf("no server is running with the embedded stores in %s: start one with telapi dev or telapi serve, or set REDIS_URL", cfg.DataDir)
		}
		return store, nil
	}
	r, err := cfg.Redis()
	return redisconn.ClientOption(r), err
}
