package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
	"time"

	"telapi/internal/redact"
)

// EdgeTLS returns the configuration of the TLS listener, nil when API_TLS_ENABLED
// is off.
func (c Config) EdgeTLS() (*tls.Config, error) {
	if !c.APITLSEnabled {
		return nil, nil
	}
	chain, err := decodeBase64(c.EdgeTLSChain.Reveal())
	if err != nil {
		return nil, Problem{"EDGE_TLS_FULLCHAIN_B64", redact.Placeholder, "not base64; allowed: PEM in base64"}
	}
	key, err := decodeBase64(c.EdgeTLSKey.Reveal())
	if err != nil {
		return nil, Problem{"EDGE_TLS_PRIVKEY_B64", redact.Placeholder, "not base64; allowed: PEM in base64"}
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, Problem{"EDGE_TLS_FULLCHAIN_B64", redact.Placeholder,
			"no pair with EDGE_TLS_PRIVKEY_B64: " + err.Error() + "; allowed: PEM in base64, the chain here and its key there"}
	}
	edge := ServerTLS()
	edge.Certificates = []tls.Certificate{pair}
	return edge, nil
}

// ServerTLS is what every TLS listener of ours speaks: 1.3, and 1.2 with AEADs.
// Go's own list for 1.2 still has CBC suites.
func ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
	}
}

func (l *loader) judgeEdgeTLS() {
	complete := true
	for _, name := range []string{"EDGE_TLS_FULLCHAIN_B64", "EDGE_TLS_PRIVKEY_B64"} {
		if !l.cfg.IsSet(name) {
			l.problem(name, "", "is not set, and API_TLS_ENABLED=true needs it; allowed: PEM in base64")
			complete = false
		}
	}
	if !complete {
		return
	}
	edge, err := l.cfg.EdgeTLS()
	var p Problem
	if errors.As(err, &p) {
		l.problems = append(l.problems, p)
	} else if until := edge.Certificates[0].Leaf.NotAfter; time.Now().After(until) {
		l.warn("EDGE_TLS_FULLCHAIN_B64", "holds a certificate that expired on %s: clients will refuse it", until.Format(time.DateOnly))
	}
}

// MediaCacheCAs returns the roots for the media service's certificate, nil for
// the system's.
func (c Config) MediaCacheCAs() (*x509.CertPool, error) {
	if c.MediaCacheCABundle == "" {
		return nil, nil
	}
	return parseBundle(c.MediaCacheCABundle.Reveal())
}

// parseBundle insists that every block is a certificate: a bundle of which a
// part is skipped in silence fails on the day that part is needed.
func parseBundle(value string) (*x509.CertPool, error) {
	rest := []byte(value)
	if !strings.Contains(value, "-----BEGIN") {
		var err error
		if rest, err = decodeBase64(value); err != nil {
			return nil, errors.New("neither PEM nor base64")
		}
	}
	pool := x509.NewCertPool()
	for n := 0; ; n++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			if n == 0 || strings.Contains(string(rest), "-----BEGIN") {
				return nil, errors.New("no certificate, or a damaged one")
			}
			return pool, nil
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("contains something that is not a certificate")
		}
		pool.AddCert(cert)
	}
}

// decodeBase64 forgives the line breaks and missing padding of common tools.
func decodeBase64(value string) ([]byte, error) {
	value = strings.TrimRight(strings.Join(strings.Fields(value), ""), "=")
	return base64.RawStdEncoding.DecodeString(value)
}
