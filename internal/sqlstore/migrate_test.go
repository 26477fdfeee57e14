package sqlstore

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"telapi/internal/fault"
)

func TestManyInstancesMigrateAtOnce(t *testing.T) {
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
				if p := await(); p.said != "done" {
					t.Errorf("another process: %s", p.said)
				}
			}

			s := open(t, options)
			status, err := s.MigrationStatus(t.Context())
			if err != nil || status.Current == 0 || status.Current != status.Newest || len(status.Pending) != 0 {
				t.Errorf("status %+v, %v, want everything applied", status, err)
			}
			var applied int64
			must(t, s.db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM goose_db_version WHERE version_id > 0").Scan(&applied))
			if applied != status.Newest {
				t.Errorf("%d migrations were applied, want each of %d once", applied, status.Newest)
			}
		})
	}
}

func TestStatusOfAFreshDatabaseChangesNothing(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, engine.make(t))
			for range 2 {
				status, err := s.MigrationStatus(t.Context())
				if err != nil || status.Current != 0 || int64(len(status.Pending)) != status.Newest || !slices.Contains(status.Pending, "00001_ground_floor.sql") {
					t.Errorf("status %+v, %v, want everything pending", status, err)
				}
			}
			var begun bool
			must(t, s.db.QueryRowContext(t.Context(), s.engine.versionTable).Scan(&begun))
			if begun {
				t.Error("asking for the status created a table")
			}
		})
	}
}

func TestNothingIsReadBeforeTheSchemaIsKnownToBeThere(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			options := engine.make(t)
			for _, opened := range []string{"fresh", "migrated by another"} {
				s := open(t, options)
				if _, err := s.Teams(t.Context()); !fault.Is(err, fault.ServiceUnavailable) {
					t.Errorf("%s, before Migrate: %v", opened, err)
				}
				must(t, s.Migrate(t.Context()))
				if _, err := s.Teams(t.Context()); err != nil {
					t.Errorf("%s, after Migrate: %v", opened, err)
				}
			}
		})
	}
}

func TestNewerDatabaseIsLeftAlone(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		_, err := s.db.ExecContext(t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (99999, TRUE)")
		must(t, err)
		status, err := s.MigrationStatus(t.Context())
		if status.Current != 99999 {
			t.Errorf("status %+v, want the version found", status)
		}
		for what, err := range map[string]error{"status": err, "migrate": s.Migrate(t.Context()), "connect": s.Connect(t.Context())} {
			if !errors.Is(err, ErrNewerSchema) || !strings.Contains(err.Error(), "upgrade telapi") {
				t.Errorf("%s: %v, want a refusal that says what to do", what, err)
			}
		}
	})
}
