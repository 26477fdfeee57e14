package sqlstore

import (
	"context"
	"embed"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/pressly/goose/v3"

	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/internal/filelock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// SchemaStatus describes the migration state of a database.
type SchemaStatus struct {
	Database string   `json:"database"`
	Current  int64    `json:"current"` // 0 if the database is empty; above Newest if a newer telapi migrated it
	Newest   int64    `json:"newest"`  // the latest version that this program knows
	Pending  []string `json:"pending"` // file names, in order
}

// SchemaStatus compares the database with the migrations in this program. It
// changes nothing.
func (s *Store) SchemaStatus(ctx context.Context) (SchemaStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	migrator, err := s.newMigrator()
	if err != nil {
		return SchemaStatus{}, err
	}
	schema := SchemaStatus{Database: s.engine.title}
	var exists bool
	err = s.read.QueryRowContext(ctx, s.engine.hasVersionTable).Scan(&exists)
	if err == nil && exists {
		err = s.read.QueryRowContext(ctx, "SELECT COALESCE(MAX(version_id), 0) FROM "+goose.DefaultTablename).Scan(&schema.Current)
	}
	if err != nil {
		return SchemaStatus{}, wrap(ctx, "read the schema version", err)
	}
	for _, source := range migrator.ListSources() {
		schema.Newest = source.Version
		if source.Version > schema.Current {
			schema.Pending = append(schema.Pending, filepath.Base(source.Path))
		}
	}
	return schema, nil
}

// Migrate brings the schema up to date. Processes may call it concurrently: one
// migrates while the others wait. A schema of a newer telapi is used unchanged.
// Migrations only add to the schema, so that two versions of telapi can use it at
// the same time, during an upgrade or a rollback.
func (s *Store) Migrate(ctx context.Context) error {
	schema, err := s.SchemaStatus(ctx)
	if err != nil {
		return err
	}
	if len(schema.Pending) == 0 {
		if schema.Current > schema.Newest {
			s.log.InfoContext(ctx, "database was migrated by a newer telapi; using its schema",
				"database", s.engine.title, "version", schema.Current, "known", schema.Newest)
		}
		s.migrated.Store(true)
		return nil
	}
	unlock, err := s.lockMigrations(ctx)
	if err != nil {
		return wrap(ctx, "lock the database for migration", err)
	}
	defer unlock()
	migrator, err := s.newMigrator()
	if err != nil {
		return err
	}
	applied, err := migrator.Up(ctx)
	if err != nil {
		return wrap(ctx, "migrate the database", err)
	}
	s.migrated.Store(true)
	if len(applied) > 0 {
		s.log.InfoContext(ctx, "database schema migrated", "database", s.engine.title, "from", schema.Current, "to", schema.Newest)
	}
	return nil
}

// migrationTimeout is how long a process waits for the migration of another one.
const migrationTimeout = 10 * time.Minute

// lockMigrations waits until no other process migrates the database. goose's own
// lock is not enough: goose creates its version table before it takes the lock.
func (s *Store) lockMigrations(ctx context.Context) (unlock func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, migrationTimeout)
	defer cancel()
	if s.engine.dialect == goose.DialectSQLite3 {
		file, err := waitForLock(waiting, filepath.Join(s.engine.dataDir, "migrate.lock"))
		return func() { filelock.Close(file) }, err
	}
	// PostgreSQL releases the lock when the transaction or its connection ends. The transaction must
	// not time out while it is idle: the migration uses another connection. transaction_timeout is
	// new in version 17, so it may not be in pg_settings.
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	unlock = func() { _ = tx.Rollback() }
	_, err = tx.ExecContext(ctx, "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')")
	for err == nil {
		var locked bool
		err = tx.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock(hashtext($1))", goose.DefaultTablename).Scan(&locked)
		if locked {
			return unlock, nil
		}
		if err == nil {
			err = background.Sleep(waiting, 100*time.Millisecond)
		}
	}
	unlock()
	return nil, err
}

// newMigrator reads the migration files without connecting. A Provider that has failed to create
// its version table does not try again: each attempt needs a new one.
func (s *Store) newMigrator() (*goose.Provider, error) {
	files, _ := fs.Sub(migrations, "migrations") // a valid path
	return goose.NewProvider(s.engine.dialect, s.write, files, goose.WithDisableGlobalRegistry(true))
}

// Connect waits until the database answers and its schema is up to date. It
// retries with exponential backoff until ctx ends and logs each new reason for
// a failure once. It returns an error only if ctx ends.
func (s *Store) Connect(ctx context.Context) error {
	start := time.Now()
	delays := background.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for lastReason := ""; ; {
		err := s.Ping(ctx)
		if err == nil {
			err = s.Migrate(ctx)
		}
		if err == nil {
			s.log.InfoContext(ctx, "database ready", "database", s.engine.title, "waited", time.Since(start).Round(time.Millisecond))
			return nil
		}
		if reason := fault.Reason(err).Error(); reason != lastReason && ctx.Err() == nil {
			lastReason = reason
			s.log.WarnContext(ctx, "database not ready, retrying", "database", s.engine.title, "reason", reason)
		}
		if err := background.Sleep(ctx, delays.Next()); err != nil {
			return err
		}
	}
}
