package sqlstore

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/speech"
	"telapi/internal/team"
	"telapi/test/testkit"
)

func TestSSLMode(t *testing.T) {
	t.Parallel()
	rightCA, wrongCA := testkit.NewCA(t), testkit.NewCA(t)
	right, wrong := filepath.Join(t.TempDir(), "right.pem"), filepath.Join(t.TempDir(), "wrong.pem")
	testkit.Must(t, os.WriteFile(right, rightCA.PEM(), 0o600), os.WriteFile(wrong, wrongCA.PEM(), 0o600))
	secure := testkit.StartPostgres(t, testkit.PostgresOptions{CA: rightCA, Hosts: []string{"127.0.0.1"}})
	withTLS, plain := secure.URL(), testkit.SharedPostgres(t).URL()
	wrongHost := strings.Replace(withTLS, "127.0.0.1", "localhost", 1) // not in its certificate

	const rejected, inPlainText, encrypted = "connection failed", "plain text", "encrypted"
	for _, tt := range []struct {
		mode, server, url, root, want string
	}{
		{"disable", "with TLS", withTLS, "", inPlainText},
		{"disable", "without TLS", plain, "", inPlainText},
		{"require", "with TLS", withTLS, "", encrypted},
		{"require", "with another host name", wrongHost, "", encrypted},
		{"require", "without TLS", plain, "", rejected},
		{"require", "signed by another CA", withTLS, wrong, rejected},
		{"verify-ca", "with TLS", withTLS, right, encrypted},
		{"verify-ca", "with another host name", wrongHost, right, encrypted},
		{"verify-ca", "signed by another CA", withTLS, wrong, rejected},
		{"verify-ca", "signed by an unknown CA", withTLS, "", rejected},
		{"verify-ca", "without TLS", plain, right, rejected},
		{"verify-full", "with TLS", withTLS, right, encrypted},
		{"verify-full", "with another host name", wrongHost, right, rejected},
		{"verify-full", "signed by another CA", withTLS, wrong, rejected},
		{"verify-full", "signed by an unknown CA", withTLS, "", rejected},
		{"verify-full", "without TLS", plain, right, rejected},
		{"", "with TLS and no mode set", withTLS, "", inPlainText},
	} {
		t.Run(tt.mode+"/server "+tt.server, func(t *testing.T) {
			if tt.root != "" {
				tt.url += "?sslrootcert=" + url.QueryEscape(tt.root)
			}
			cfg, _, err := config.Load([]string{"DATABASE_SSL_MODE=" + tt.mode, "DATABASE_URL=" + tt.url}, config.Tool)
			testkit.Must(t, err)
			s := open(t, Options{DSN: cfg.DatabaseDSN()})
			var tls bool
			err = s.read.QueryRowContext(t.Context(), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&tls)
			got := map[bool]string{true: encrypted, false: inPlainText}[tls]
			if err != nil {
				got = rejected
			}
			if got != tt.want {
				t.Errorf("%s (error %v), want %s", got, err, tt.want)
			}
			if err := s.Ping(t.Context()); (err != nil) != (tt.want == rejected) || err != nil && !fault.Is(err, fault.ServiceUnavailable) {
				t.Errorf("ping: %v; want an error: %v", err, tt.want == rejected)
			}
		})
	}
}

// openURL opens a store with DATABASE_URL.
func openURL(url string) (*Store, error) {
	cfg, _, err := config.Load([]string{"DATABASE_URL=" + url}, config.Tool)
	if err != nil {
		return nil, err
	}
	return Open(Options{DSN: cfg.DatabaseDSN()})
}

func TestInvalidURLErrorHidesPassword(t *testing.T) {
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	testkit.Must(t, os.WriteFile(notPEM, []byte("nothing"), 0o600))
	for name, tt := range map[string]struct{ dsn, want string }{
		"another scheme":                           {"mysql://u:hunter2@db/x", "scheme"},
		"no scheme":                                {"host=db password=hunter2", "not a URL"},
		"slash in the password":                    {"postgres://u:hunter2/x@db/x", "percent-encoded"},
		"question mark in the password":            {"postgres://u:hunter2?x@db/x", "percent-encoded"},
		"digits and slash in the password":         {"postgres://u:22/hunter2@db/x", "percent-encoded"},
		"digits and question mark in the password": {"postgres://u:22?hunter2@db/x", "percent-encoded"},
		"broken escape":                            {"postgres://u:hunter2%zz@db/x", "percent-encoded"},
		"broken parameter":                         {"postgres://u:hunter2@db/x?a=%zz", "query"},
		"wrong port":                               {"postgres://u:hunter2@db:port/x", "host"},
		"missing root":                             {"postgres://u:hunter2@db/x?sslmode=verify-ca&sslrootcert=/nowhere.pem", "/nowhere.pem"},
		"root that is not PEM":                     {"postgres://u:hunter2@db/x?sslmode=verify-ca&sslrootcert=" + notPEM, "CA"},
		"unknown mode":                             {"postgres://u:hunter2@db/x?sslmode=sometimes", "sslmode"},
		"invalid timeout":                          {"postgres://u:hunter2@db/x?connect_timeout=soon", "soon"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := openURL(tt.dsn)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v, want one with %q and without the password", err, tt.want)
			}
		})
	}
}

// FuzzDatabaseURL checks that an unescaped password never appears in an error or
// in String().
func FuzzDatabaseURL(f *testing.F) {
	for _, password := range []string{"plain", "a/b", "a@b", "1?b", "1#b", "%zz", "a:b", "[::", ",:1,@", "12/x", "&sslmode=x"} {
		f.Add(password)
	}
	f.Fuzz(func(t *testing.T, password string) {
		secret := "Qx7" + password + "7xQ"
		s, err := openURL("postgres://u:" + secret + "@db.example/x")
		if err != nil {
			if strings.Contains(err.Error(), "Qx7") || strings.Contains(err.Error(), "7xQ") {
				t.Errorf("error shows the password: %v", err)
			}
			return
		}
		defer func() { _ = s.Close() }()
		if strings.Contains(s.String(), "Qx7") || strings.Contains(s.String(), "7xQ") {
			t.Errorf("String() shows the password: %s", s)
		}
	})
}

func TestConnectWaitsForDatabase(t *testing.T) {
	t.Parallel()
	server := testkit.StartPostgres(t, testkit.PostgresOptions{Stopped: true})
	var logged testkit.Buffer
	s := open(t, Options{DSN: redact.Secret(server.URL()), Logger: logged.Logger()})
	testkit.WantFault(t, "read during the outage", testkit.ErrorOf(s.Team(t.Context(), "t1")), fault.ServiceUnavailable)

	connected := make(chan error, 1)
	go func() { connected <- s.Connect(t.Context()) }()
	testkit.Until(t, "a line about the outage", func() bool { return strings.Contains(logged.Lines()[0], "connection refused") })
	server.Start(t)
	testkit.Must(t, <-connected)
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
	testkit.Must(t, s.Connect(t.Context()))
	newTeam(t, s, "t1")
	testkit.Must(t, s.CreateKey(t.Context(), auth.Key{ID: "k1", TeamID: "t1", CreatedAt: testTime}))

	for name, end := range map[string]func(){"stop": server.Stop, "crash": server.Crash} {
		end()
		_, teamErr := s.Team(t.Context(), "t1")
		_, usageErr := s.UsageBuckets(t.Context(), speech.UsageQuery{TeamID: "t1", Interval: speech.Day})
		for what, err := range map[string]error{
			"read": teamErr, "list": usageErr, "ping": s.Ping(t.Context()),
			"write": s.RevokeKey(t.Context(), "k1", testTime),
			"batch": s.TouchKeys(t.Context(), map[string]time.Time{"k1": testTime}),
		} {
			testkit.WantFault(t, fmt.Sprintf("%s after a %s", what, name), err, fault.ServiceUnavailable)
			if err != nil && (strings.Contains(err.Error(), "user=") || strings.Contains(err.Error(), "password")) {
				t.Errorf("%s after a %s shows part of the URL: %v", what, name, err)
			}
		}
		server.Start(t)
		testkit.Until(t, "an answer after a "+name, func() bool { return s.Ping(t.Context()) == nil })
		testkit.Must(t, testkit.ErrorOf(s.Team(t.Context(), "t1")))
		testkit.Must(t, s.TouchKeys(t.Context(), map[string]time.Time{"k1": testTime}))
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

func TestStandbyIsUnavailableForWrites(t *testing.T) {
	t.Parallel()
	dsn := redact.Secret(testkit.SharedPostgres(t).NewDatabase(t))
	before := open(t, Options{DSN: dsn})
	testkit.Must(t, before.Migrate(t.Context()))
	newTeam(t, before, "t1")
	_, err := before.write.ExecContext(t.Context(), `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`)
	testkit.Must(t, err)

	s := open(t, Options{DSN: dsn})
	testkit.Must(t, s.Connect(t.Context()))
	testkit.Must(t, testkit.ErrorOf(s.Team(t.Context(), "t1")))
	_, update := s.UpdateTeam(t.Context(), "t1", func(t *team.Team) ([]audit.Entry, error) { t.Name = "other"; return nil, nil })
	for what, err := range map[string]error{
		"write":  s.CreateTeam(t.Context(), team.Team{ID: "t2", CreatedAt: testTime}),
		"update": update,
		"batch":  s.TouchKeys(t.Context(), map[string]time.Time{"k1": testTime}),
	} {
		testkit.WantFault(t, what, err, fault.ServiceUnavailable)
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
