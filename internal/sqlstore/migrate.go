package sqlstore

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Schema is how far a database has been migrated.
type Schema struct {
	Database string   `json:"database"`
	Current  int64    `json:"current"` // 0: not at all; over Newest: by a newer telapi
	Newest   int64    `json:"newest"`  // what this program brings
	Pending  []string `json:"pending"` // files still to run, in order
}

// MigrationStatus compares the database with the migrations of this program,
// and changes nothing.
func (s *Store) MigrationStatus(ctx context.Context) (Schema, error) {
	ctx, cancel := context.WithTimeout(ctx, statementTimeout)
	defer cancel()
	schema := Schema{Database: s.String()}
	var begun bool
	err := s.db.QueryRowContext(ctx, s.engine.versionTable).Scan(&begun)
	if err == nil && begun {
		err = s.db.QueryRowContext(ctx, "SELECT COALESCE(MAX(version_id), 0) FROM "+goose.DefaultTablename).Scan(&schema.Current)
	}
	if err != nil {
		return Schema{}, failure(ctx, "read the schema version", err)
	}
	for _, source := range s.schema.ListSources() {
		schema.Newest = source.Version
		if source.Version > schema.Current {
			schema.Pending = append(schema.Pending, filepath.Base(source.Path))
		}
	}
	return schema, nil
}

// Migrate brings the schema up to date. Any number of processes may call it at
// once: one works, the others wait and find nothing left to do. A schema that a
// newer telapi has migrated is used as it is: migrations only add, so that an
// upgrade can be rolled out one server at a time, and back.
func (s *Store) Migrate(ctx context.Context) error {
	schema, err := s.MigrationStatus(ctx)
	if err != nil {
		return err
	}
	if len(schema.Pending) == 0 {
		if schema.Current > schema.Newest {
			s.log.InfoContext(ctx, "a newer telapi has migrated the database, and only added to it: it is used as it is",
				"database", s.engine.title, "version", schema.Current, "known", schema.Newest)
		}
		s.ready.Store(true)
		return nil
	}
	if s.engine.dataDir != "" {
		file, err := awaitLockFile(ctx, filepath.Join(s.engine.dataDir, "migrate.lock"))
		if err != nil {
			return fmt.Errorf("lock the data folder for migration: %w", err)
		}
		defer file.Close()
	}
	applied, err := s.schema.Up(ctx)
	if err != nil {
		return failure(ctx, "migrate the database", err)
	}
	s.ready.Store(true)
	if len(applied) > 0 {
		s.log.InfoContext(ctx, "database schema migrated", "database", s.engine.title, "from", schema.Current, "to", schema.Newest)
	}
	return nil
}

// prepareMigrations reads the files; the database is not touched yet.
func prepareMigrations(db *sql.DB, dialect goose.Dialect) (*goose.Provider, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	options := []goose.ProviderOption{goose.WithDisableGlobalRegistry(true)}
	if dialect == goose.DialectPostgres {
		// Held by the session, so a migrator that dies lets go. Tried every
		// second for ten minutes.
		locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 600))
		if err != nil {
			return nil, fmt.Errorf("prepare the migration lock: %w", err)
		}
		options = append(options, goose.WithSessionLocker(locker))
	}
	return goose.NewProvider(dialect, db, files, options...)
}
