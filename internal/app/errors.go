package app

import (
	"errors"
	"fmt"

	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/redisstore"
	"telapi/internal/sqlstore"
)

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
