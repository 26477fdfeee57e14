package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/media"
	"telapi/internal/redisstore"
	"telapi/internal/sqlstore"
)

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
	if cfg.RedisURL != "" {
		opts, err := redisOptions(cfg, log)
		if err == nil {
			s.openKeyValue(opts)
		}
		return err
	}
	embedded, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{
		DataDir: cfg.DataDir, MaxBytes: cfg.EmbeddedKVMaxBytes, KeepText: cfg.EnablePIILogging,
	}, log)
	if err != nil {
		return fmt.Errorf("start embedded key-value store: %w", err)
	}
	s.onClose(embedded.Close)
	s.openKeyValue(embedded.Options(log))
	return nil
}

// join opens the stores of a running server. Like openRunningKeyValue, it fails with
// redisstore.ErrNoServer if no server is running, but leaves the database open.
func (s *stores) join(cfg config.Config, log *slog.Logger) error {
	if err := s.openDatabase(cfg, log); err != nil {
		return err
	}
	return s.openRunningKeyValue(cfg, log)
}

// openRunningKeyValue opens Redis, or the embedded store of a running server. It fails with
// redisstore.ErrNoServer if no server is running.
func (s *stores) openRunningKeyValue(cfg config.Config, log *slog.Logger) error {
	opts, err := locateKeyValue(cfg, log)
	if err == nil {
		s.openKeyValue(opts)
	}
	return err
}

// locateKeyValue returns how to connect to the store that openRunningKeyValue opens.
func locateKeyValue(cfg config.Config, log *slog.Logger) (opts redisstore.Options, err error) {
	if cfg.RedisURL == "" {
		opts, err = redisstore.Join(cfg.DataDir)
	} else {
		opts, err = redisOptions(cfg, log)
	}
	opts.Logger, opts.ConnectTimeout = log, storeTimeout
	return opts, err
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

// ensureSchema creates the schema of an empty database. It does not upgrade an existing
// one: the operator decides when to do that.
func (s *stores) ensureSchema(ctx context.Context, cfg config.Config) error {
	schema, err := s.schemaStatus(ctx, cfg)
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

// schemaStatus returns which migrations the database has. telapi's commands call it before
// they use the database: its error explains why the database is unavailable.
func (s *stores) schemaStatus(ctx context.Context, cfg config.Config) (sqlstore.SchemaStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	schema, err := s.sql.SchemaStatus(ctx)
	if err != nil {
		err = databaseError(s.sql, cfg, err)
	}
	return schema, err
}

// openMedia returns a client of the media service, or nil if none is configured.
func openMedia(cfg config.Config) (*media.Client, error) {
	if cfg.MediaCacheURL == "" {
		return nil, nil
	}
	return media.NewClient(cfg.MediaCacheURL, cfg.MediaCacheToken, cfg.MediaCacheCAs())
}

// databaseError explains an error of the first access to the database.
func databaseError(db *sqlstore.Store, cfg config.Config, err error) error {
	settings := "DATABASE_URL and DATABASE_SSL_MODE, and that PostgreSQL is running"
	if cfg.DatabaseURL == "" {
		settings = "DATA_DIR"
	}
	return fmt.Errorf("%s is unavailable: %w. Check %s", db, fault.Reason(err), settings)
}

// keyValueError explains an error of the first access to the key-value store.
func keyValueError(err error) error {
	return fmt.Errorf("the key-value store is unavailable: %w. Check REDIS_URL and REDIS_TLS_ENABLED, and that Redis is running", fault.Reason(err))
}

// noServerError replaces redisstore.ErrNoServer with an error that says what to do.
func noServerError(cfg config.Config, err error) error {
	if errors.Is(err, redisstore.ErrNoServer) {
		return fmt.Errorf("no server is running with the embedded stores in %s: start one with telapi dev or telapi serve, or set REDIS_URL", cfg.DataDir)
	}
	return err
}
