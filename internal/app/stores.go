package app

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/internal/redisstore"
	"telapi/internal/sqlstore"
)

// stores are the two places where state lives: the database, and the key-value
// store with, where nothing else is configured, the embedded engine behind it.
type stores struct {
	sql      *sqlstore.Store
	kv       *redisstore.Store
	embedded *redisstore.Embedded // nil unless this process runs it
	unlock   func()
}

// openServerStores opens the stores as the server does: it owns what is
// embedded. A store that is away is no error here; it is connected to later.
func openServerStores(cfg config.Config, log *slog.Logger) (_ *stores, err error) {
	s := &stores{unlock: func() {}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.sql, err = openDatabase(cfg, log); err != nil {
		return nil, err
	}
	unlock, err := s.sql.LockServer()
	if err != nil {
		return nil, err
	}
	s.unlock = unlock
	opts, err := redisOptions(cfg)
	if err != nil {
		return nil, err
	}
	opts.Logger = log
	if cfg.RedisURL == "" {
		if s.embedded, err = redisstore.StartEmbedded(cfg.DataDir, log); err != nil {
			return nil, fmt.Errorf("start the embedded key-value store: %w", err)
		}
		opts = s.embedded.Options(log)
	}
	s.kv = redisstore.Open(opts)
	return s, nil
}

// joinStores opens the stores as administration does, beside a running server.
// The key-value store is nil where it is embedded and no server runs it.
func joinStores(cfg config.Config, log *slog.Logger) (s *stores, err error) {
	s = &stores{unlock: func() {}}
	if s.sql, err = openDatabase(cfg, log); err != nil {
		return nil, err
	}
	if s.kv, err = joinKeyValue(cfg, log); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func joinKeyValue(cfg config.Config, log *slog.Logger) (*redisstore.Store, error) {
	opts, err := redisOptions(cfg)
	if cfg.RedisURL == "" {
		opts, err = redisstore.Join(cfg.DataDir)
	}
	if errors.Is(err, redisstore.ErrNoServer) {
		return nil, nil //nolint:nilnil // nobody runs it: that is an answer
	}
	if err != nil {
		return nil, err
	}
	opts.Logger, opts.Patience = log, reachTimeout
	return redisstore.Open(opts), nil
}

func openDatabase(cfg config.Config, log *slog.Logger) (*sqlstore.Store, error) {
	db, err := sqlstore.Open(sqlstore.Options{DSN: cfg.DatabaseDSN(), DataDir: cfg.DataDir, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return db, nil
}

func redisOptions(cfg config.Config) (redisstore.Options, error) {
	r, err := cfg.Redis()
	return redisstore.Options{Addrs: r.Addrs, Username: r.Username, Password: r.Password, DB: r.DB, TLS: r.TLS}, err
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

// close lets go of everything, in the reverse order of opening.
func (s *stores) close() {
	if s.kv != nil {
		s.kv.Close()
	}
	if s.embedded != nil {
		s.embedded.Close()
	}
	if s.sql != nil {
		_ = s.sql.Close()
	}
	s.unlock()
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
	return rueidis.ClientOption{InitAddress: r.Addrs, Username: r.Username, Password: r.Password.Reveal(), SelectDB: r.DB, TLSConfig: r.TLS}, err
}
