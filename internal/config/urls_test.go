package config

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"telapi/internal/redact"
	"telapi/test/testkit"
)

func TestRedisURLIsParsed(t *testing.T) {
	for raw, want := range map[string]RedisOptions{
		"redis://kv":                           {Addrs: []string{"kv:6379"}},
		"redis://kv:7000/3":                    {Addrs: []string{"kv:7000"}, DB: 3},
		"redis://:p%40ss%2F@h1:1,h2:2,[::1]/0": {Addrs: []string{"h1:1", "h2:2", "[::1]:6379"}, Password: "p@ss/"},
		"rediss://app:secret@kv":               {Addrs: []string{"kv:6379"}, Username: "app", Password: "secret", TLS: &tls.Config{}},
		" redis://kv/ \n":                      {Addrs: []string{"kv:6379"}},
	} {
		c, _ := load(t, Tool, "REDIS_URL="+raw)
		got, err := c.Redis()
		if err != nil || !slices.Equal(got.Addrs, want.Addrs) || got.Username != want.Username || got.Password != want.Password ||
			got.DB != want.DB || (got.TLS == nil) != (want.TLS == nil) {
			t.Errorf("%s: options %+v with password %q (error %v), want %+v with password %q", raw, got, got.Password.Reveal(), err, want, want.Password.Reveal())
		}
	}
}

func TestRedisTLSSettingsApplyToURL(t *testing.T) {
	certificate := testkit.NewCA(t).PEM()
	file := filepath.Join(t.TempDir(), "ca.pem")
	for content, want := range map[string]string{string(certificate): "", "no certificate": "REDIS_TLS_CA_FILE=" + file} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _ := load(t, Tool, "REDIS_URL=redis://kv", "REDIS_TLS_ENABLED=true", "REDIS_TLS_CA_FILE="+file)
		got, err := c.Redis()
		if want == "" && (err != nil || got.TLS == nil || got.TLS.RootCAs == nil) || want != "" && !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("options %+v and error %v, want root certificates or error %q", got, err, want)
		}
	}
	if got, err := (Config{RedisTLSEnabled: true}).Redis(); err != nil || got.Addrs != nil {
		t.Errorf("without a URL: options %+v and error %v, want no addresses", got, err)
	}
}

func TestMalformedURLsAreRejected(t *testing.T) {
	for name, list := range map[string][]string{
		"REDIS_URL": {"kv:6379", "redis:kv", "redis://", "redis://h1:1,", "redis://h1:1,h2:2/1", "redis://kv/x", "redis://kv/-1", "redis://kv:0", "redis://kv:65536",
			"redis://kv:1:2", "redis://::1", "redis://pw@kv", "redis://:p/w@kv", "redis://kv?db=1", "redis://kv#f", "redis://kv/1/2", "http://kv", "redis://:p@kv:x"},
		"DATABASE_URL": {"db", "postgres://", "postgres:///d", "postgres://h/d?sslmode=yes", "postgres://h/d?sslmode=", "postgres://h/d?sslmode=require&sslmode=require", "postgres://h/d#f", "postgres://u:p;w?a=%zz@h/d", "host=db user=app"},
		"PUBLIC_URL":   {"api.example", "//api.example", "ftp://api.example", "https://", "https://a,b", "https://api.example/?x=1", "https://api.example/#f", "https://:3001", "http://::1/"},
	} {
		for _, raw := range list {
			if _, _, err := Load([]string{name + "=" + raw}, Tool); err == nil {
				t.Errorf("%s=%s was accepted", name, raw)
			}
		}
	}
}

func TestDatabaseSSLMode(t *testing.T) {
	for _, c := range []struct{ url, mode, wantDSN, wantMode string }{
		{"", "", "", "disable"},
		{"postgres://h/d", "", "postgres://h:5432/d?sslmode=disable", "disable"},
		{"postgres://h/d?sslmode=verify-full", "", "postgres://h:5432/d?sslmode=verify-full", "verify-full"},
		{"postgres://h/d?sslmode=prefer", "", "postgres://h:5432/d?sslmode=prefer", "prefer"},
		{"postgres://h/d", "require", "postgres://h:5432/d?sslmode=require", "require"},
		{"postgres://h/d?sslmode=verify-full&sslrootcert=%2Fca.pem", "verify-full", "postgres://h:5432/d?sslmode=verify-full&sslrootcert=%2Fca.pem", "verify-full"},
		{"postgres://a:b%3F@h1:1,h2/d?sslrootcert=/ca.pem", "verify-ca", "postgres://a:b%3F@h1:1,h2:5432/d?sslmode=verify-ca&sslrootcert=%2Fca.pem", "verify-ca"},
		{"postgresql:///d?host=/run/postgresql", "", "postgresql:///d?host=%2Frun%2Fpostgresql&sslmode=disable", "disable"},
	} {
		t.Run(fmt.Sprintf("%s with %q", c.url, c.mode), func(t *testing.T) {
			cfg, _ := load(t, Tool, "DATABASE_URL="+c.url, "DATABASE_SSL_MODE="+c.mode)
			if got := cfg.DatabaseDSN(); got.Reveal() != c.wantDSN || cfg.DatabaseSSLMode != c.wantMode {
				t.Errorf("DSN %s with mode %s, want %s with mode %s", got.Reveal(), cfg.DatabaseSSLMode, c.wantDSN, c.wantMode)
			}
		})
	}
	if got := (Config{DatabaseURL: redact.Secret("postgres://h/d?sslmode=require")}).DatabaseDSN(); got.Reveal() != "postgres://h:5432/d?sslmode=require" {
		t.Errorf("without Load: DSN %s, want sslmode=require of the URL", got.Reveal())
	}
}

func TestContradictingSSLModesAreRejected(t *testing.T) {
	for _, c := range []struct{ url, mode string }{
		{"postgres://h/d?sslmode=require", "verify-full"},
		{"postgres://h/d?sslmode=verify-full", "disable"},
		{"postgres://h/d?sslmode=prefer", "require"},
		{"postgresql:///d?host=/run/postgresql&sslmode=require", "disable"},
	} {
		for _, mode := range []Mode{Serve, Dev, Tool} {
			_, _, err := Load([]string{"JWT_SECRET=" + validSecret, "DATABASE_URL=" + c.url, "DATABASE_SSL_MODE=" + c.mode}, mode)
			if want := "DATABASE_SSL_MODE=" + c.mode + ": contradicts sslmode="; err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s with DATABASE_SSL_MODE=%s in mode %d: error %v, want %q", c.url, c.mode, mode, err, want)
			}
		}
	}
}

// An unescaped slash ends the host. The rest of the password would be printed as the
// path of the URL.
func TestUnescapedPasswordIsNotShown(t *testing.T) {
	for _, url := range []string{"postgres://app:12/hunter2@db/x", "postgres://app:12?hunter2@db/x", "mysql://app:12/hunter2@db/x"} {
		_, _, err := Load([]string{"DATABASE_URL=" + url}, Tool)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want one without the password", url, err)
		}
	}
}
