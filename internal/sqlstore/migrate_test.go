package sqlstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pressly/goose/v3"

	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/redact"
	"telapi/test/testkit"
)

func TestConcurrentMigrations(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			options := engine.make(t)
			var processes []func() *process
			for range 3 {
				processes = append(processes, startCompanion(t, "migrate", options))
			}
			var wg sync.WaitGroup
			for range 8 {
				s := open(t, options)
				wg.Go(func() {
					if err := s.Migrate(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			for _, await := range processes {
				if p := await(); p.output != "done" {
					t.Errorf("another process printed %q, want done", p.output)
				}
			}

			s := open(t, options)
			status, err := s.SchemaStatus(t.Context())
			if err != nil || status.Current == 0 || status.Current != status.Newest || len(status.Pending) != 0 {
				t.Errorf("status %+v, %v, want all migrations applied", status, err)
			}
			var applied int64
			testkit.Must(t, s.read.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM goose_db_version WHERE version_id > 0").Scan(&applied))
			testkit.Equal(t, "migrations were applied", applied, status.Newest)
		})
	}
}

// goose creates its version table before it takes a lock of its own.
func TestMigrationChangesNothingBeforeItsLock(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DSN: redact.Secret(testkit.SharedPostgres(t).NewDatabase(t))})
	query := func(sql string) (answer bool) {
		testkit.Must(t, s.read.QueryRowContext(t.Context(), sql).Scan(&answer))
		return answer
	}
	unlock, err := s.lockMigrations(t.Context())
	testkit.Must(t, err)
	defer unlock()
	migrated := make(chan error, 1)
	go func() { migrated <- s.Migrate(t.Context()) }()
	testkit.Until(t, "the migration asks for the lock", func() bool {
		return query("SELECT COUNT(*) > 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'")
	})
	if query(s.engine.hasVersionTable) {
		t.Error("the version table exists before the migration has its lock")
	}
	unlock()
	testkit.NoError(t, "migrate after another process", <-migrated)
}

func TestMigrationWaitsForSQLiteLockWithBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Store{engine: engine{dialect: goose.DialectSQLite3, dataDir: t.TempDir()}}
		unlock, err := s.lockMigrations(t.Context())
		testkit.Must(t, err)
		defer unlock()
		ctx, cancel := context.WithTimeout(t.Context(), 2*migrationTimeout)
		defer cancel()
		if _, err := s.lockMigrations(ctx); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("lock while another process has it: %v, want an error before the deadline of the caller", err)
		}
	})
}

// A role without the right to create tables gets it while the server runs.
func TestMigrationIsRepeatedAfterFailure(t *testing.T) {
	t.Parallel()
	dsn := testkit.SharedPostgres(t).NewDatabase(t)
	owner := open(t, Options{DSN: redact.Secret(dsn)})
	role := "role_" + strings.ToLower(rand.Text())
	run := func(sql string) {
		t.Helper()
		testkit.Must(t, testkit.ErrorOf(owner.write.ExecContext(context.Background(), sql)))
	}
	run("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
	run("CREATE ROLE " + role + " LOGIN PASSWORD 'secret'")
	t.Cleanup(func() { run("DROP OWNED BY " + role); run("DROP ROLE " + role) })
	asRole, err := url.Parse(dsn)
	testkit.Must(t, err)
	asRole.User = url.UserPassword(role, "secret")
	s := open(t, Options{DSN: redact.Secret(asRole.String())})
	if err := s.Migrate(t.Context()); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Fatalf("migrate without the right: %v, want permission denied", err)
	}
	run("GRANT CREATE ON SCHEMA public TO " + role)
	testkit.NoError(t, "migrate with the right", s.Migrate(t.Context()))
}

func TestSchemaStatusChangesNothing(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, engine.make(t))
			for range 2 {
				status, err := s.SchemaStatus(t.Context())
				if err != nil || status.Current != 0 || int64(len(status.Pending)) != status.Newest || !slices.Contains(status.Pending, "00001_accounts.sql") {
					t.Errorf("status %+v, %v, want all migrations pending", status, err)
				}
			}
			var exists bool
			testkit.Must(t, s.write.QueryRowContext(t.Context(), s.engine.hasVersionTable).Scan(&exists))
			if exists {
				t.Error("SchemaStatus created the version table")
			}
		})
	}
}

func TestStoreIsUnavailableBeforeMigration(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			options := engine.make(t)
			for _, database := range []string{"new database", "database migrated by another process"} {
				s := open(t, options)
				testkit.WantFault(t, fmt.Sprintf("%s, before Migrate", database), testkit.ErrorOf(s.Teams(t.Context(), page.All)), fault.ServiceUnavailable)
				testkit.Must(t, s.Migrate(t.Context()))
				testkit.NoError(t, fmt.Sprintf("%s, after Migrate", database), testkit.ErrorOf(s.Teams(t.Context(), page.All)))
			}
		})
	}
}

func TestOlderProgramRunsOnNewerSchema(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			options := engine.make(t)
			newer := open(t, options)
			testkit.Must(t, newer.Migrate(t.Context()))
			newTeam(t, newer, "t1")
			testkit.Must(t, testkit.ErrorOf(newer.write.ExecContext(t.Context(), "ALTER TABLE teams ADD COLUMN colour TEXT")))
			testkit.Must(t, testkit.ErrorOf(newer.write.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, TRUE)")))

			var logged testkit.Buffer
			options.Logger = logged.Logger()
			s := open(t, options)
			testkit.Must(t, s.Connect(t.Context()))
			newTeam(t, s, "t2")
			testkit.NoError(t, "read the team that the newer program created", testkit.ErrorOf(s.Team(t.Context(), "t1")))
			status, err := s.SchemaStatus(t.Context())
			if err != nil || status.Current != 99999 || status.Newest >= 99999 || len(status.Pending) != 0 {
				t.Errorf("status %+v, %v, want version 99999 and no pending migrations", status, err)
			}
			if lines := logged.Lines(); len(lines) != 2 || !strings.Contains(lines[0], "newer telapi") {
				t.Errorf("log:\n%s\nwant a line about the newer schema and one when the database is ready", strings.Join(lines, "\n"))
			}
		})
	}
}

// Servers of the previous version use the schema during an upgrade and after a
// rollback.
func TestMigrationsOnlyAdd(t *testing.T) {
	removes := regexp.MustCompile(`(?i)\b(DROP|RENAME|ALTER\s+COLUMN|SET\s+NOT\s+NULL|ADD\s+CONSTRAINT|DELETE\s+FROM|UPDATE\s+\w+\s+SET|TRUNCATE)\b`)
	requires := regexp.MustCompile(`(?i)\bADD\s+COLUMN\b.*\bNOT\s+NULL\b`)
	comments := regexp.MustCompile(`--.*`)
	files, err := fs.Glob(migrations, "migrations/*.sql")
	testkit.Must(t, err)
	for _, name := range files {
		text, err := migrations.ReadFile(name)
		testkit.Must(t, err)
		for statement := range strings.SplitSeq(comments.ReplaceAllString(string(text), ""), ";") {
			statement = strings.Join(strings.Fields(statement), " ")
			if removes.MatchString(statement) || requires.MatchString(statement) && !strings.Contains(strings.ToUpper(statement), "DEFAULT") {
				t.Errorf("%s: %q breaks servers of the previous version; migrations must only add", name, statement)
			}
		}
	}
}
