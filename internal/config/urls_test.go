package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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
		testkit.Must(t, os.WriteFile(file, []byte(content), 0o600))
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

// certificate returns a self-signed certificate and its key.
func certificate(t *testing.T, notAfter time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: notAfter.Add(-time.Hour), NotAfter: notAfter, DNSNames: []string{"edge.example"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	testkit.Must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	testkit.Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func toBase64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// wrappedBase64 encodes in lines of 76 characters, as the command base64 does.
func wrappedBase64(b []byte) string {
	return regexp.MustCompile(`.{76}`).ReplaceAllString(toBase64(b), "$0\n") + "\n"
}

func TestEdgeTLSOffersAEADSuitesOnly(t *testing.T) {
	cert, key := certificate(t, time.Now().Add(time.Hour))
	c, warnings := load(t, Dev, "API_TLS_ENABLED=true", "EDGE_TLS_FULLCHAIN_B64="+wrappedBase64(cert), "EDGE_TLS_PRIVKEY_B64="+strings.TrimRight(toBase64(key), "="))
	if len(warnings) > 0 {
		t.Errorf("warnings %v, want none", warnings)
	}
	server, err := c.EdgeTLS()
	testkit.Must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	handshake := func(client *tls.Config) error {
		clientConn, serverConn := net.Pipe()
		defer clientConn.Close()
		go func() {
			defer serverConn.Close()
			s := tls.Server(serverConn, server)
			if s.Handshake() == nil {
				_, _ = io.Copy(io.Discard, s)
			}
		}()
		client.RootCAs, client.ServerName = roots, "edge.example"
		return tls.Client(clientConn, client).Handshake()
	}
	for name, client := range map[string]struct {
		config   *tls.Config
		rejected bool
	}{
		"TLS 1.3":      {&tls.Config{MinVersion: tls.VersionTLS13}, false},
		"TLS 1.2 GCM":  {&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}}, false},
		"TLS 1.2 CBC":  {&tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}}, true},
		"TLS 1.1 only": {&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, true},
	} {
		if err := handshake(client.config); (err != nil) != client.rejected {
			t.Errorf("%s: error %v, want rejected: %v", name, err, client.rejected)
		}
	}
}

func TestInvalidEdgeTLSIsRejected(t *testing.T) {
	cert, key := certificate(t, time.Now().Add(time.Hour))
	_, otherKey := certificate(t, time.Now().Add(time.Hour))
	for name, c := range map[string]struct{ chain, key, want string }{
		"invalid base64": {"***", toBase64(key), "EDGE_TLS_FULLCHAIN_B64=[redacted]: invalid base64"},
		"raw key":        {toBase64(cert), string(key), "EDGE_TLS_PRIVKEY_B64=[redacted]: invalid base64"},
		"not PEM":        {toBase64([]byte("hello")), toBase64(key), "EDGE_TLS_FULLCHAIN_B64=[redacted]: does not match"},
		"other key":      {toBase64(cert), toBase64(otherKey), "does not match"},
		"swapped":        {toBase64(key), toBase64(cert), "EDGE_TLS_FULLCHAIN_B64=[redacted]: does not match"},
		"missing chain":  {"", toBase64(key), "EDGE_TLS_FULLCHAIN_B64: not set"},
	} {
		_, _, err := Load([]string{"API_TLS_ENABLED=true", "EDGE_TLS_FULLCHAIN_B64=" + c.chain, "EDGE_TLS_PRIVKEY_B64=" + c.key}, Dev)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func TestExpiredEdgeCertificateCausesWarning(t *testing.T) {
	cert, key := certificate(t, time.Now().Add(-time.Hour))
	_, warnings := load(t, Dev, "API_TLS_ENABLED=true", "EDGE_TLS_FULLCHAIN_B64="+toBase64(cert), "EDGE_TLS_PRIVKEY_B64="+toBase64(key))
	if len(warnings) != 1 || !strings.Contains(warnings[0].String(), "expired on") {
		t.Errorf("warnings %v, want one about the expiry", warnings)
	}
}

func TestMediaCABundleIsPlainOrBase64(t *testing.T) {
	one, key := certificate(t, time.Now().Add(time.Hour))
	two, _ := certificate(t, time.Now().Add(time.Hour))
	both := append(append([]byte{}, one...), two...)
	for name, value := range map[string]string{"raw": string(both), "base64": toBase64(both), "wrapped base64": wrappedBase64(both), "spaced": "\n" + string(one) + "\n"} {
		c, _ := load(t, Dev, "TTS_MEDIA_CACHE_CA_BUNDLE="+value)
		if c.MediaCacheCAs() == nil {
			t.Errorf("%s: no pool, want one", name)
		}
	}
	for name, value := range map[string]string{
		"text": "hello!", "base64 of text": toBase64([]byte("hello")), "a key": string(key), "damaged second certificate": string(one) + string(two[:len(two)/2]),
		"key after a certificate": string(one) + string(key),
	} {
		if _, _, err := Load([]string{"TTS_MEDIA_CACHE_CA_BUNDLE=" + value}, Dev); err == nil || !strings.Contains(err.Error(), "TTS_MEDIA_CACHE_CA_BUNDLE="+redact.Placeholder) {
			t.Errorf("%s: error %v, want one for TTS_MEDIA_CACHE_CA_BUNDLE without the value", name, err)
		}
	}
	if pool := (Config{}).MediaCacheCAs(); pool != nil {
		t.Errorf("unset: pool %v, want none", pool)
	}
}

func TestICEServersAreParsedFromURLsAndJSON(t *testing.T) {
	for _, tt := range []struct{ name, value, want string }{
		{"empty", "", "[]"},
		{"one URL", "stun:stun.example", "[{[stun:stun.example]  }]"},
		{"STUN and TURN", "stun:a.example:3478, turn:b.example?transport=udp,stuns:[2001:db8::1]:5349,turns:c.example:443?transport=tcp",
			"[{[stun:a.example:3478 stuns:[2001:db8::1]:5349]  } {[turn:b.example?transport=udp turns:c.example:443?transport=tcp]  }]"},
		{"JSON", `[{"urls":"stun:a.example"},{"urls":["turn:b.example"],"username":"u","credential":"hunter2"}]`,
			"[{[stun:a.example]  } {[turn:b.example] u [redacted]}]"},
		{"empty JSON", `[]`, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, _ := load(t, Dev, "WEBRTC_ICE_SERVERS="+tt.value, "TURN_SHARED_SECRET=north")
			testkit.Equal(t, "servers", fmt.Sprint(c.ICEServerList()), tt.want)
		})
	}
}

func TestErrorOfInvalidICEServersOmitsValue(t *testing.T) {
	for _, value := range []string{
		"hunter2", "stun:", "http://hunter2.example", "stun:a,,stun:b", "stun:a b", "stun:a:0", "stun:a:99999", "stun:2001:db8::1", "stun://hunter2",
		"stun:a?transport=udp", "turn:a?transport=sctp", "turn:user@hunter2",
		"[", "[1]", "[{}]", `[{"urls":1}]`, `[{"urls":[]}]`, `[{"urls":"stun:a","password":"hunter2"}]`, `[{"urls":"turn:a","username":"hunter2"}]`,
		`[{"urls":"stun:a","urls":"stun:b"}]`, `{"urls":"stun:a"}`,
	} {
		_, _, err := Load([]string{"WEBRTC_ICE_SERVERS=" + value, "TURN_SHARED_SECRET=x"}, Dev)
		if err == nil || !strings.Contains(err.Error(), "WEBRTC_ICE_SERVERS") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want one for WEBRTC_ICE_SERVERS without the value", value, err)
		}
	}
}

func TestTURNServerNeedsCredential(t *testing.T) {
	const withCredential = `[{"urls":"turn:a","username":"u","credential":"c"}]`
	for value, valid := range map[string]bool{"stun:a": true, "turn:a": false, "stun:a,turns:b": false, withCredential: true} {
		_, _, err := Load([]string{"WEBRTC_ICE_SERVERS=" + value}, Dev)
		if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), "TURN_SHARED_SECRET") {
			t.Errorf("%s without TURN_SHARED_SECRET: error %v, want it to be valid: %v", value, err, valid)
		}
	}
}

func TestErrorOfMalformedCollectorHeadersOmitsValue(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS"} {
		for _, malformed := range []string{"hunter2", "api-key: hunter2", "a=b,hunter2", "authorization=Bearer hunter2%zz", "Bearer hunter2==", "=hunter2", "a=hunter2%0d%0ab"} {
			_, _, err := Load([]string{name + "=" + malformed}, Tool)
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "name=value") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s=%s: error %v, want one with the name and the format, without the value", name, malformed, err)
			}
		}
		for _, valid := range []string{"a=b", "authorization=Bearer%20hunter2==,x-tenant=ü, y=,", "authorization=Basic dTpw"} {
			load(t, Tool, name+"="+valid)
		}
	}
}
