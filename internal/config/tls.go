package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"

	"telapi/internal/redact"
)

// EdgeTLS returns the TLS configuration for API_TLS_ENABLED=true. Its error is a Problem.
func (c Config) EdgeTLS() (*tls.Config, error) {
	const chainName, keyName, hint = "EDGE_TLS_FULLCHAIN_B64", "EDGE_TLS_PRIVKEY_B64", "; use PEM in base64"
	chain, err := decodeBase64(c.EdgeTLSChain.Reveal())
	if err != nil {
		return nil, Problem{chainName, redact.Placeholder, "invalid base64" + hint}
	}
	key, err := decodeBase64(c.EdgeTLSKey.Reveal())
	if err != nil {
		return nil, Problem{keyName, redact.Placeholder, "invalid base64" + hint}
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, Problem{chainName, redact.Placeholder, "does not match " + keyName + ": " + err.Error() + hint}
	}
	tlsConfig := ServerTLS()
	tlsConfig.Certificates = []tls.Certificate{pair}
	return tlsConfig, nil
}

// ServerTLS returns the configuration of all TLS listeners: HTTP/1.1 over TLS 1.3, or
// TLS 1.2 with AEAD cipher suites only. Go's default for 1.2 includes CBC suites.
func ServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		CipherSuites: []uint16{
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
		},
	}
}

// MediaCacheCAs returns the root certificates for the media service, which Load has checked,
// or nil for the system's.
func (c Config) MediaCacheCAs() *x509.CertPool {
	pool, _ := parseBundle(c.MediaCacheCABundle.Reveal())
	return pool
}

// parseBundle parses PEM certificates, plain or in base64. It rejects every other PEM
// block, because a skipped certificate would only be noticed when it is needed.
func parseBundle(value string) (*x509.CertPool, error) {
	const begin = "-----BEGIN"
	rest := []byte(value)
	if !strings.Contains(value, begin) {
		var err error
		if rest, err = decodeBase64(value); err != nil {
			return nil, errors.New("neither PEM nor base64")
		}
	}
	block, rest := pem.Decode(rest)
	damaged := block == nil
	pool := x509.NewCertPool()
	for ; block != nil; block, rest = pem.Decode(rest) {
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("contains a PEM block that is not a certificate")
		}
		pool.AddCert(cert)
	}
	if damaged || strings.Contains(string(rest), begin) {
		return nil, errors.New("missing or damaged certificate")
	}
	return pool, nil
}

// decodeBase64 accepts line breaks and missing padding.
func decodeBase64(value string) ([]byte, error) {
	value = strings.TrimRight(strings.Join(strings.Fields(value), ""), "=")
	return base64.RawStdEncoding.DecodeString(value)
}
