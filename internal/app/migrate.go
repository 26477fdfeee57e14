package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"telapi/internal/config"
	"telapi/internal/sqlstore"
	"telapi/internal/telemetry"
)

// Migrate brings the schema up to date, unless only its status is asked for.
func Migrate(ctx context.Context, cfg config.Config, log io.Writer, statusOnly bool) (sqlstore.Schema, error) {
	db, err := openDatabase(cfg, toolLogger(cfg, log))
	if err != nil {
		return sqlstore.Schema{}, err
	}
	defer func() { _ = db.Close() }()
	if !statusOnly {
		if err := db.Migrate(ctx); err != nil {
			return sqlstore.Schema{}, fmt.Errorf("migrate: %w", err)
		}
	}
	return db.MigrationStatus(ctx)
}

// toolLogger is the log of a short command: warnings on stderr, unless
// LOG_LEVEL asks for more.
func toolLogger(cfg config.Config, w io.Writer) *slog.Logger {
	level := "warn"
	if cfg.IsSet("LOG_LEVEL") {
		level = cfg.LogLevel
	}
	return telemetry.NewLogger(telemetry.Options{Level: level, Format: cfg.LogFormat, Writer: w, MSISDNDigits: cfg.MSISDNUnmaskedDigits})
}
