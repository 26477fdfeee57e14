package app

import (
	"context"
	"errors"
	"fmt"

	"telapi/internal/config"
	"telapi/internal/sqlstore"
)

// databaseError explains an error of the first access to the database.
func databaseError(db *sqlstore.Store, cfg config.Config, err error) error {
	settings := "DATABASE_URL and DATABASE_SSL_MODE, and that the server is running"
	if cfg.DatabaseURL == "" {
		settings = "DATA_DIR"
	}
	return fmt.Errorf("%s is unavailable: %w. Check %s", db, Reason(err), settings)
}

// keyValueError explains an error of the first access to the key-value store.
func keyValueError(err error) error {
	return fmt.Errorf("the key-value store is unavailable: %w. Check REDIS_URL and REDIS_TLS_ENABLED, and that the server is running", Reason(err))
}

// Reason returns the innermost cause of an error, which is more useful to operators
// than the names of the operations that failed.
func Reason(err error) error {
	for {
		switch e := err.(type) { //nolint:errorlint // it unwraps itself
		case interface{ Unwrap() error }:
			if e.Unwrap() == nil {
				return err
			}
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			err = e.Unwrap()[0]
		default:
			if errors.Is(err, context.DeadlineExceeded) {
				return errors.New("timed out")
			}
			return err
		}
	}
}
