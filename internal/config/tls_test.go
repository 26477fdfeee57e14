package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"telapi/internal/redact"
)

// certificate returns a self-signed certificate and its key.
func certificate(t *testing.T, notAfter time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: notAfter.Add(-time.Hour), NotAfter: notAfter, DNSNames: []string{"edge.example"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if got, err := (Config{}).EdgeTLS(); got != nil || err != nil {
		t.Errorf("disabled: configuration %v and error %v, want none", got, err)
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
		if pool, err := c.MediaCacheCAs(); err != nil || pool == nil {
			t.Errorf("%s: pool %v (error %v), want one", name, pool, err)
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
	if pool, err := (Config{}).MediaCacheCAs(); pool != nil || err != nil {
		t.Errorf("unset: pool %v and error %v, want none", pool, err)
	}
}
