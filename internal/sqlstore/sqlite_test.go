package sqlstore

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/redact"
	"telapi/internal/session"
	"telapi/internal/team"
	"telapi/test/testkit"
)

func TestDataDirectoryIsPrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "folder ?a=b#c %41 ü")
	s := open(t, Options{DataDir: dir})
	testkit.Must(t, s.Connect(t.Context()))
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
	testkit.Must(t, os.WriteFile(file, nil, 0o600))
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
		testkit.Must(t, err)
		defer func() { _ = conn.Close() }()
		queryOnly := map[*sql.DB]string{s.write: "0", s.read: "1"}[pool]
		for pragma, want := range map[string]string{"busy_timeout": "5000", "journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "secure_delete": "1", "query_only": queryOnly} {
			var got string
			testkit.Must(t, conn.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got))
			testkit.Equal(t, fmt.Sprintf("connection %d: %s", i, pragma), got, want)
		}
	}
}

// With several writing connections, a writer that finds the database locked polls
// until its busy timeout. The timeout here allows no polling.
func TestParallelWritersNeverFailAsBusy(t *testing.T) {
	t.Parallel()
	s := open(t, Options{DataDir: t.TempDir(), busyTimeout: time.Microsecond})
	testkit.Must(t, s.Migrate(t.Context()))
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
	testkit.Must(t, s.Migrate(t.Context()))
	other := startCompanion(t, "write", options)()
	if other.output != "done" {
		t.Fatalf("the writing process printed %q, want done", other.output)
	}
	testkit.NoError(t, "read during the write", testkit.ErrorOf(s.Teams(t.Context(), page.All)))
	written := make(chan error, 1)
	go func() { written <- s.CreateTeam(t.Context(), team.Team{ID: "t1", CreatedAt: testTime}) }()
	testkit.Until(t, "the write is waiting", func() bool { return s.write.Stats().InUse > 0 })
	other.end()
	testkit.Must(t, <-written)
}

func TestBusyDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	options := Options{DataDir: t.TempDir(), busyTimeout: time.Microsecond}
	s := open(t, options)
	testkit.Must(t, s.Migrate(t.Context()))
	startCompanion(t, "write", options)()
	testkit.WantFault(t, "write to a locked database", s.CreateTeam(t.Context(), team.Team{ID: "t1", CreatedAt: testTime}), fault.ServiceUnavailable)
}

func TestSecondServerIsRejected(t *testing.T) {
	t.Parallel()
	options := Options{DataDir: t.TempDir()}
	s := open(t, options)
	release, err := s.LockServer()
	testkit.Must(t, err)
	output := startCompanion(t, "lock", options)().output
	testkit.Contains(t, "output", output, options.DataDir, fmt.Sprintf("process %d", os.Getpid()), "DATA_DIR", "DATABASE_URL")
	testkit.Equal(t, "a command next to the server printed", startCompanion(t, "migrate", options)().output, "done")
	release()

	successor := startCompanion(t, "lock", options)()
	if successor.output != "done" {
		t.Fatalf("lock after the first server released it: %q, want done", successor.output)
	}
	if _, err := s.LockServer(); err == nil {
		t.Error("LockServer succeeded while another process holds the lock")
	}
	testkit.Must(t, successor.command.Process.Kill())
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
		testkit.Must(t, err)
		defer release()
	}
}

var placeholder = regexp.MustCompile(`\$\d+`)

func TestNoQueryScansATable(t *testing.T) {
	queries := []string{
		selectTeam, listTeams, updateTeam, selectKey, revokeKey, countKeys, trimKeys, touchKey,
		selectEndpoint, countEndpoints, updateEndpoint, selectSetting, redeemSession, endSession, touchSession,
		overdueSessions, expireSession, staleSessions, unsettledSessions, deleteSessions, selectKeyRecord, insertAction,
		revokeSessionsOfTeam, revokeSessionsOfEndpoint, recordingsAfter, expiredRecordings, unusedRecordings, deleteReports, deleteAudit,
	}
	queries = append(queries, sumUsage)
	for _, teams := range []page.Teams{allTeams, page.OfTeam("t1")} {
		queries = append(queries, listKeys(teams), listEndpoints(teams))
		for _, after := range []string{"", "x"} {
			q := page.Query{After: after}
			queries = append(queries, listAudit(audit.Query{Teams: teams, Query: q}), listSessions(session.Query{Teams: teams, Query: q}))
			for state := range stateConditions {
				queries = append(queries, listSessions(session.Query{Teams: teams, State: state, Query: q}))
			}
		}
	}
	onEachEngine(t, func(t *testing.T, s *Store) {
		explain := explainSQLite
		if s.engine.dataDir == "" {
			explain = explainPostgres
		}
		for _, query := range queries {
			parameters := slices.Compact(slices.Sorted(slices.Values(placeholder.FindAllString(query, -1))))
			for _, step := range explain(t, s, query, len(parameters)) {
				t.Errorf("%s\nneeds %q, want only index lookups", query, step)
			}
		}
	})
}

// sorting are the queries that sort the rows that an index found.
var sorting = []string{staleSessions, expiredRecordings, deleteReports}

// explainSQLite returns the steps of a query's plan that read a whole table, or sort.
func explainSQLite(t *testing.T, s *Store, query string, parameters int) (scans []string) {
	type planStep struct {
		id, parent, unused int
		detail             string
	}
	steps, err := queryAll(t.Context(), s.write, func(p *planStep) []any { return []any{&p.id, &p.parent, &p.unused, &p.detail} },
		"EXPLAIN QUERY PLAN "+query, make([]any, parameters)...)
	testkit.Must(t, err)
	for _, step := range steps {
		inOrder := strings.Contains(step.detail, " USING INDEX ") && strings.Contains(query, "LIMIT") // reads one page
		oneRow := step.detail == "SCAN CONSTANT ROW" || step.detail == "SCAN newest"
		sorts := strings.Contains(step.detail, "ORDER BY") && !slices.Contains(sorting, query)
		if sorts || strings.HasPrefix(step.detail, "SCAN") && !inOrder && !oneRow {
			scans = append(scans, step.detail)
		}
	}
	return scans
}

// explainPostgres returns the steps of a query's plan that read a whole table although
// such steps are disabled, because no index is suitable, or a whole index.
func explainPostgres(t *testing.T, s *Store, query string, parameters int) (scans []string) {
	tx, err := s.write.BeginTx(t.Context(), nil)
	testkit.Must(t, err)
	defer tx.Rollback()
	for _, statement := range []string{"SET LOCAL enable_seqscan = off", "SET LOCAL plan_cache_mode = force_generic_plan", "PREPARE explained AS " + query} {
		testkit.Must(t, testkit.ErrorOf(tx.ExecContext(t.Context(), statement)))
	}
	steps, err := queryAll(t.Context(), tx, column[string],
		"EXPLAIN EXECUTE explained("+strings.TrimSuffix(strings.Repeat("NULL, ", parameters), ", ")+")")
	testkit.Must(t, err)
	testkit.Must(t, testkit.ErrorOf(tx.ExecContext(t.Context(), "DEALLOCATE explained")))
	for i, step := range steps {
		wholeIndex := !strings.Contains(query, "LIMIT") && strings.Contains(step, "Index Scan") && !strings.Contains(steps[i+1], "Index Cond")
		if wholeIndex || strings.Contains(step, "Seq Scan") {
			scans = append(scans, strings.TrimSpace(step))
		}
	}
	return scans
}

// companionJob is the environment variable that makes the test binary a companion:
// another process that uses the same database. It does the job, prints one line and
// exits when its input is closed.
const companionJob = "SQLSTORE_TEST_COMPANION"

func TestMain(m *testing.M) {
	if job := os.Getenv(companionJob); job != "" {
		companion(job)
		return
	}
	testkit.Main(m)
}

func companion(job string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	s, err := Open(Options{DSN: redact.Secret(os.Getenv("DSN")), DataDir: os.Getenv("DIR")})
	fail(err)
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	switch job {
	case "migrate":
		fail(s.Migrate(ctx))
	case "lock":
		_, err := s.LockServer()
		fail(err)
	case "write":
		tx, err := s.write.BeginTx(ctx, nil)
		fail(err)
		defer func() { _ = tx.Commit() }()
	}
	fmt.Println("done")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// process is a companion that has printed its line.
type process struct {
	output  string // the line
	command *exec.Cmd
	input   io.Closer
}

// end stops the process and waits for it.
func (p *process) end() {
	_ = p.input.Close()
	_ = p.command.Wait()
}

// startCompanion starts a companion. await waits for its line.
func startCompanion(t *testing.T, job string, o Options) (await func() *process) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), companionJob+"="+job, "DSN="+o.DSN.Reveal(), "DIR="+o.DataDir)
	command.Stderr = os.Stderr
	input, err := command.StdinPipe()
	testkit.Must(t, err)
	output, err := command.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, command.Start())
	p := &process{command: command, input: input}
	t.Cleanup(p.end)
	return func() *process {
		t.Helper()
		line, err := bufio.NewReader(output).ReadString('\n')
		if err != nil {
			t.Fatalf("the %s process printed nothing: %v", job, err)
		}
		p.output = strings.TrimSpace(line)
		return p
	}
}
