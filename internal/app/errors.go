package app

import (
	"fmt"

	"telapi/internal/config"
	"telapi/internal/fault"
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
