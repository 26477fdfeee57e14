package sqlstore

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/test/testkit"
)

func TestSSLMode(t *testing.T) {
	t.Parallel()
	rightCA, wrongCA := testkit.NewCA(t), testkit.NewCA(t)
	right, wrong := filepath.Join(t.TempDir(), "right.pem"), filepath.Join(t.TempDir(), "wrong.pem")
	must(t, os.WriteFile(right, rightCA.PEM(), 0o600), os.WriteFile(wrong, wrongCA.PEM(), 0o600))
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
			must(t, err)
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

func TestInvalidURLErrorHidesPassword(t *testing.T) {
	notPEM := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(notPEM, []byte("nothing"), 0o600))
	for name, tt := range map[string]struct{ dsn, want string }{
		"another scheme":                           {"mysql://u:hunter2@db/x", "postgres://"},
		"no scheme":                                {"host=db password=hunter2", "postgres://"},
		"slash in the password":                    {"postgres://u:hunter2/x@db/x", "percent-encode"},
		"at sign in the password":                  {"postgres://u:hunter2@x@db/x", "percent-encode"},
		"question mark in the password":            {"postgres://u:hunter2?x@db/x", "percent-encode"},
		"digits and slash in the password":         {"postgres://u:22/hunter2@db/x", "percent-encode"},
		"digits and question mark in the password": {"postgres://u:22?hunter2@db/x", "percent-encode"},
		"broken escape":                            {"postgres://u:hunter2%zz@db/x", "percent-encode"},
		"broken parameter":                         {"postgres://u:hunter2@db/x?a=%zz", "parameter"},
		"wrong port":                               {"postgres://u:hunter2@db:port/x", "percent-encode"},
		"missing root":                             {"postgres://u:hunter2@db/x?sslmode=verify-ca&sslrootcert=/nowhere.pem", "/nowhere.pem"},
		"root that is not PEM":                     {"postgres://u:hunter2@db/x?sslmode=verify-ca&sslrootcert=" + notPEM, "CA"},
		"unknown mode":                             {"postgres://u:hunter2@db/x?sslmode=sometimes", "sslmode"},
		"invalid timeout":                          {"postgres://u:hunter2@db/x?connect_timeout=soon", "soon"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(Options{DSN: redact.Secret(tt.dsn)})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v, want one with %q and without the password", err, tt.want)
			}
		})
	}
}

func TestPostgresString(t *testing.T) {
	for dsn, want := range map[string]string{
		"postgres://u:p%40@db.example/x":                                            "PostgreSQL at db.example:5432",
		"postgresql://u:p@db1:6432,db2:6433/x?target_session_attrs=read-write":      "PostgreSQL at db1:6432",
		"postgres://u:p@[::1]:6432/x":                                               "PostgreSQL at [::1]:6432",
		"postgres:///x?host=/run/postgresql&user=u":                                 "PostgreSQL at /run/postgresql",
		"postgres://u:p@db.example/x?sslmode=disable&application_name=telapi%20two": "PostgreSQL at db.example:5432",
	} {
		if s := open(t, Options{DSN: redact.Secret(dsn)}); s.String() != want {
			t.Errorf("String() of %s is %q, want %q", dsn, s, want)
		}
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
		s, err := Open(Options{DSN: redact.Secret("postgres://u:" + secret + "@db.example/x")})
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
