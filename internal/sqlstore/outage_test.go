package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/team"
	"telapi/internal/usage"
	"telapi/test/testkit"
)

func TestConnectWaitsForDatabase(t *testing.T) {
	t.Parallel()
	server := testkit.StartPostgres(t, testkit.PostgresOptions{Stopped: true})
	var logged testkit.Buffer
	s := open(t, Options{DSN: redact.Secret(server.URL()), Logger: logged.Logger()})
	if _, err := s.Team(t.Context(), "t1"); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("read during the outage: %v, want SERVICE_UNAVAILABLE", err)
	}

	connected := make(chan error, 1)
	go func() { connected <- s.Connect(t.Context()) }()
	testkit.Until(t, "a line about the outage", func() bool { return strings.Contains(logged.Lines()[0], "connection refused") })
	server.Start(t)
	must(t, <-connected)
	newTeam(t, s, "t1")

	lines := logged.Lines()
	refusals := 0
	for _, line := range lines {
		if strings.Contains(line, "connection refused") {
			refusals++
		}
		if strings.Contains(line, "password") || strings.Contains(line, "postgres://") {
			t.Errorf("the log shows the URL: %s", line)
		}
	}
	if refusals != 1 || !strings.Contains(lines[0], fmt.Sprintf("127.0.0.1:%d", server.Port)) || !strings.Contains(lines[len(lines)-1], "database ready") {
		t.Errorf("log:\n%s\nwant one line about the refused connection, with the server's address, and a last line when the database is ready", strings.Join(lines, "\n"))
	}
}

func TestStoreRecoversAfterOutage(t *testing.T) {
	t.Parallel()
	server := testkit.StartPostgres(t, testkit.PostgresOptions{})
	s := open(t, Options{DSN: redact.Secret(server.URL())})
	must(t, s.Connect(t.Context()))
	newTeam(t, s, "t1")
	must(t, s.CreateKey(t.Context(), auth.Key{ID: "k1", TeamID: "t1", CreatedAt: testTime}))

	for name, end := range map[string]func(){"stop": server.Stop, "crash": server.Crash} {
		end()
		_, teamErr := s.Team(t.Context(), "t1")
		_, usageErr := s.TTSUsage(t.Context(), usage.Query{TeamID: "t1", Interval: usage.Day})
		for what, err := range map[string]error{
			"read": teamErr, "list": usageErr, "ping": s.Ping(t.Context()),
			"write": s.RevokeKey(t.Context(), "k1", testTime),
			"batch": s.TouchKeys(t.Context(), map[string]time.Time{"k1": testTime}),
		} {
			if !fault.Is(err, fault.ServiceUnavailable) {
				t.Errorf("%s after a %s: %v, want SERVICE_UNAVAILABLE", what, name, err)
			}
			if err != nil && (strings.Contains(err.Error(), "user=") || strings.Contains(err.Error(), "password")) {
				t.Errorf("%s after a %s shows part of the URL: %v", what, name, err)
			}
		}
		server.Start(t)
		testkit.Until(t, "an answer after a "+name, func() bool { return s.Ping(t.Context()) == nil })
		_, err := s.Team(t.Context(), "t1")
		must(t, err)
		must(t, s.TouchKeys(t.Context(), map[string]time.Time{"k1": testTime}))
	}
}

func TestRejectedLoginDoesNotLogPassword(t *testing.T) {
	t.Parallel()
	right := testkit.SharedPostgres(t).URL()
	_, host, _ := strings.Cut(right, "@")
	var logged testkit.Buffer
	s := open(t, Options{DSN: redact.Secret("postgres://telapi:hunter2@" + host), Logger: logged.Logger()})
	go func() { _ = s.Connect(t.Context()) }()
	testkit.Until(t, "a line about the credential", func() bool { return strings.Contains(logged.Lines()[0], "password authentication failed") })
	if _, err := s.Team(t.Context(), "t1"); !fault.Is(err, fault.ServiceUnavailable) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v, want SERVICE_UNAVAILABLE without the password", err)
	}
}

func TestRetriesAreLoggedOnce(t *testing.T) {
	t.Parallel()
	// A server that closes all connections, like one behind a broken proxy.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer listener.Close()
	tries := make(chan struct{})
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1024))
			_ = conn.Close()
			tries <- struct{}{}
		}
	}()
	var logged testkit.Buffer
	s := open(t, Options{DSN: redact.Secret("postgres://u:p@" + listener.Addr().String() + "/x"), Logger: logged.Logger()})
	ctx, cancel := context.WithCancel(t.Context())
	connected := make(chan error, 1)
	go func() { connected <- s.Connect(ctx) }()
	for range 4 {
		<-tries
	}
	cancel()
	if err := <-connected; !errors.Is(err, context.Canceled) {
		t.Errorf("connect: %v, want context.Canceled", err)
	}
	if lines := logged.Lines(); len(lines) != 1 || !strings.Contains(lines[0], "database not ready") {
		t.Errorf("log:\n%s\nwant one line about the failure", strings.Join(lines, "\n"))
	}
}

func TestFailureReasonIgnoresNumbers(t *testing.T) {
	for _, pair := range [][2]error{
		{errors.New("read tcp 127.0.0.1:40001->10.0.0.1:5432: reset"), errors.New("read tcp 127.0.0.1:40002->10.0.0.1:5432: reset")},
		{errors.New("expired: current time 12:00:01\n\tis after"), errors.New("expired: current time 12:00:02 is after")},
	} {
		a, b := failureReason(pair[0]), failureReason(pair[1])
		if numbers.ReplaceAllString(a, "") != numbers.ReplaceAllString(b, "") || strings.Contains(a, "\n") {
			t.Errorf("%q and %q count as different reasons, or have a line break", a, b)
		}
	}
}

func TestStandbyIsUnavailableForWrites(t *testing.T) {
	t.Parallel()
	dsn := redact.Secret(testkit.SharedPostgres(t).NewDatabase(t))
	before := open(t, Options{DSN: dsn})
	must(t, before.Migrate(t.Context()))
	newTeam(t, before, "t1")
	_, err := before.write.ExecContext(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	must(t, err)

	s := open(t, Options{DSN: dsn})
	must(t, s.Connect(t.Context()))
	_, err = s.Team(t.Context(), "t1")
	must(t, err)
	_, update := s.UpdateTeam(t.Context(), "t1", func(t *team.Team) ([]audit.Entry, error) { t.Name = "other"; return nil, nil })
	for what, err := range map[string]error{
		"write":  s.CreateTeam(t.Context(), team.Team{ID: "t2", CreatedAt: testTime}),
		"update": update,
		"batch":  s.TouchKeys(t.Context(), map[string]time.Time{"k1": testTime}),
	} {
		if !fault.Is(err, fault.ServiceUnavailable) {
			t.Errorf("%s: %v, want SERVICE_UNAVAILABLE", what, err)
		}
	}
}

func TestTemporaryErrorsAreUnavailable(t *testing.T) {
	for state, unavailable := range map[string]bool{
		"08006": true, "28P01": true, "40P01": true, "53100": true, "53300": true, "57P01": true, "57014": true, "58030": true, "25006": true, "3D000": true, "55P03": true,
		"42P01": false, "42703": false, "23502": false, "22001": false, "25001": false,
	} {
		err := wrap(t.Context(), "try", &pgconn.PgError{Code: state})
		if fault.Is(err, fault.ServiceUnavailable) != unavailable {
			t.Errorf("SQLSTATE %s: %v; want SERVICE_UNAVAILABLE: %v", state, err, unavailable)
		}
	}
}
