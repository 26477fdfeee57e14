package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"telapi/internal/config"
	"telapi/internal/telemetry"
)

// SchemaStatus is how far a database has been migrated.
type SchemaStatus struct {
	Database string   `json:"database"`
	Current  int64    `json:"current"`
	Newest   int64    `json:"newest"`
	Pending  []string `json:"pending"`
}

// Migrate brings the schema up to date, unless only its status is asked for.
func Migrate(ctx context.Context, cfg config.Config, log io.Writer, statusOnly bool) (SchemaStatus, error) {
	db, err := openDatabase(cfg, toolLogger(cfg, log))
	if err != nil {
		return SchemaStatus{}, err
	}
	defer func() { _ = db.Close() }()
	if !statusOnly {
		if err := db.Migrate(ctx); err != nil {
			return SchemaStatus{}, fmt.Errorf("migrate: %w", err)
		}
	}
	s, err := db.MigrationStatus(ctx)
	if err != nil {
		return SchemaStatus{}, fmt.Errorf("read migration status: %w", err)
	}
	return SchemaStatus{db.String(), s.Current, s.Newest, append([]string{}, s.Pending...)}, nil
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
