package sqlstore

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/team"
	"telapi/test/testkit"
)

func TestDataDirectoryIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "folder ?a=b#c %41 ü")
	s := open(t, Options{DataDir: dir})
	must(t, s.Connect(t.Context()))
	newTeam(t, s, "t1")
	for name, want := range map[string]os.FileMode{".": 0o700, "telapi.db": 0o600, "telapi.db-wal": 0o600, "telapi.db-shm": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", name, info, err, want)
		}
	}
}

func TestInvalidDataDirectoryIsRejected(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{"", file, filepath.Join(file, "below")} {
		if _, err := Open(Options{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "DATA_DIR") {
			t.Errorf("%q: %v, want an error that names DATA_DIR", dir, err)
		}
	}
}

func TestEveryConnectionHasItsPragmas(t *testing.T) {
	s := open(t, Options{DataDir: t.TempDir()})
	for i, pool := range []*sql.DB{s.write, s.read, s.read, s.read} {
		conn, err := pool.Conn(t.Context()) // held, so that the pool opens another one next time
		must(t, err)
		defer func() { _ = conn.Close() }()
		queryOnly := map[*sql.DB]string{s.write: "0", s.read: "1"}[pool]
		for pragma, want := range map[string]string{"busy_timeout": "5000", "journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "secure_delete": "1", "query_only": queryOnly} {
			var got string
			must(t, conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got))
			if got != want {
				t.Errorf("connection %d: %s is %s, want %s", i, pragma, got, want)
			}
		}
	}
}

func TestReadersCannotWrite(t *testing.T) {
	s := open(t, Options{DataDir: t.TempDir()})
	must(t, s.Migrate(t.Context()))
	if _, err := s.read.ExecContext(t.Context(), "DELETE FROM teams"); sqlState(err) != "25006" {
		t.Errorf("write on a connection for reads: %v, want a read-only error", err)
	}
}

// With several writing connections, a writer that finds the database locked polls
// until its busy timeout. The timeout here allows no polling.
func TestParallelWritersNeverFailAsBusy(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DataDir: t.TempDir(), busyTimeout: time.Microsecond})
	must(t, s.Migrate(t.Context()))
	const writers, teams = 32, 4
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range teams {
				id := fmt.Sprint(w, "-", i)
				err := s.CreateTeam(t.Context(), team.Team{ID: id, CreatedAt: testTime})
				if err == nil {
					_, err = s.UpdateTeam(t.Context(), id, func(t *team.Team) ([]audit.Entry, error) { t.Name = "renamed"; return nil, nil })
				}
				if err == nil {
					_, err = s.Team(t.Context(), id)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if all, err := s.Teams(t.Context(), page.All); err != nil || len(all) != writers*teams {
		t.Errorf("%d teams, %v, want %d", len(all), err, writers*teams)
	}
}

func TestWriterWaitsForAnotherProcess(t *testing.T) {
	t.Parallel()
	options := Options{DataDir: t.TempDir()}
	s := open(t, options)
	must(t, s.Migrate(t.Context()))
	other := startCompanion(t, "write", options)()
	if other.output != "done" {
		t.Fatalf("the writing process printed %q, want done", other.output)
	}
	if _, err := s.Teams(t.Context(), page.All); err != nil {
		t.Errorf("read during the write: %v", err)
	}
	written := make(chan error, 1)
	go func() { written <- s.CreateTeam(t.Context(), team.Team{ID: "t1", CreatedAt: testTime}) }()
	testkit.Until(t, "the write is waiting", func() bool { return s.write.Stats().InUse > 0 })
	other.end()
	must(t, <-written)
}

func TestBusyDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	options := Options{DataDir: t.TempDir(), busyTimeout: time.Microsecond}
	s := open(t, options)
	must(t, s.Migrate(t.Context()))
	startCompanion(t, "write", options)()
	if err := s.CreateTeam(t.Context(), team.Team{ID: "t1", CreatedAt: testTime}); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("write to a locked database: %v, want SERVICE_UNAVAILABLE", err)
	}
}

func TestSecondServerIsRejected(t *testing.T) {
	t.Parallel()
	options := Options{DataDir: t.TempDir()}
	s := open(t, options)
	release, err := s.LockServer()
	must(t, err)
	output := startCompanion(t, "lock", options)().output
	for _, part := range []string{options.DataDir, fmt.Sprintf("process %d", os.Getpid()), "DATA_DIR", "DATABASE_URL"} {
		if !strings.Contains(output, part) {
			t.Errorf("the second server printed %q, want %q in it", output, part)
		}
	}
	if output := startCompanion(t, "migrate", options)().output; output != "done" {
		t.Errorf("a command next to the server printed %q, want done", output)
	}
	release()

	successor := startCompanion(t, "lock", options)()
	if successor.output != "done" {
		t.Fatalf("lock after the first server released it: %q, want done", successor.output)
	}
	if _, err := s.LockServer(); err == nil {
		t.Error("LockServer succeeded while another process holds the lock")
	}
	must(t, successor.command.Process.Kill())
	testkit.Until(t, "the lock of a killed server is free", func() bool {
		release, err := s.LockServer()
		if err == nil {
			release()
		}
		return err == nil
	})
}

func TestServersShareOnePostgres(t *testing.T) {
	options := engines[1].make(t)
	for range 2 {
		release, err := open(t, options).LockServer()
		must(t, err)
		defer release()
	}
}
