package media_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/test/testkit"
)

func TestTLSCiphersAndCertificateRenewal(t *testing.T) {
	first, second := testkit.NewCA(t), testkit.NewCA(t)
	dir := t.TempDir()
	_, certFile, keyFile := first.Files(t, dir, "localhost")
	var log testkit.Buffer
	certificate, err := media.LoadCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	secure := config.ServerTLS()
	secure.GetCertificate = certificate.Get
	s := start(t, media.Options{MemoryBytes: 1 << 20}, secure)
	dial := func(ca *testkit.CA, version uint16, suites ...uint16) error {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.PEM())
		conn, err := tls.Dial("tcp", s.addr, &tls.Config{ServerName: "localhost", RootCAs: roots, MinVersion: version, MaxVersion: version, CipherSuites: suites})
		if err == nil {
			conn.Close()
		}
		return err
	}
	for name, tt := range map[string]struct {
		version uint16
		suites  []uint16
		ok      bool
	}{
		"TLS 1.3":          {tls.VersionTLS13, nil, true},
		"TLS 1.2 AES-GCM":  {tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}, true},
		"TLS 1.2 ChaCha20": {tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}, true},
		"TLS 1.2 CBC":      {tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA}, false},
		"TLS 1.1":          {tls.VersionTLS11, nil, false},
	} {
		if err := dial(first, tt.version, tt.suites...); (err == nil) != tt.ok {
			t.Errorf("%s: %v; want success: %v", name, err, tt.ok)
		}
	}

	// A renewal writes the certificate before its key.
	certPEM, keyPEM := second.Issue(t, "localhost")
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// awaitLog performs handshakes until another line with text is logged.
	awaitLog := func(text string) {
		t.Helper()
		before := strings.Count(log.String(), text)
		testkit.Until(t, text, func() bool {
			_, _ = certificate.Get(nil)
			return strings.Count(log.String(), text) > before
		})
	}
	write("cert.pem", certPEM)
	awaitLog("new certificate is invalid")
	if err := dial(first, tls.VersionTLS13); err != nil {
		t.Errorf("the previous certificate is not served: %v", err)
	}
	write("key.pem", keyPEM)
	testkit.Until(t, "the new certificate is served", func() bool { return dial(second, tls.VersionTLS13) == nil })

	// An invalid key is replaced by a valid one with the same size and modification
	// time.
	certPEM, keyPEM = first.Issue(t, "localhost")
	renewed := time.Now().Add(time.Minute)
	writeAt := func(key []byte) {
		t.Helper()
		write("cert.pem", certPEM)
		write("key.pem", key)
		for _, file := range []string{certFile, keyFile} {
			if err := os.Chtimes(file, renewed, renewed); err != nil {
				t.Fatal(err)
			}
		}
	}
	writeAt(bytes.ToLower(keyPEM))
	awaitLog("new certificate is invalid")
	writeAt(keyPEM)
	testkit.Until(t, "the renewed certificate is served", func() bool { return dial(first, tls.VersionTLS13) == nil })
}
