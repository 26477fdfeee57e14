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

// EdgeTLS returns the configuration of the TLS listener, or nil if API_TLS_ENABLED
// is false.
func (c Config) EdgeTLS() (*tls.Config, error) {
	if !c.APITLSEnabled {
		return nil, nil
	}
	const name, use = "EDGE_TLS_FULLCHAIN_B64", "; use PEM in base64"
	chain, err := decodeBase64(c.EdgeTLSChain.Reveal())
	if err != nil {
		return nil, Problem{name, redact.Placeholder, "invalid base64" + use}
	}
	key, err := decodeBase64(c.EdgeTLSKey.Reveal())
	if err != nil {
		return nil, Problem{"EDGE_TLS_PRIVKEY_B64", redact.Placeholder, "invalid base64" + use}
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, Problem{name, redact.Placeholder, "does not match EDGE_TLS_PRIVKEY_B64: " + err.Error() + use}
	}
	edge := ServerTLS()
	edge.Certificates = []tls.Certificate{pair}
	return edge, nil
}

// ServerTLS returns the configuration of all TLS listeners: TLS 1.3, and TLS 1.2
// with AEAD cipher suites only. Go's default for 1.2 includes CBC suites.
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

// MediaCacheCAs returns the root certificates for the media service, or nil for the
// system's.
func (c Config) MediaCacheCAs() (*x509.CertPool, error) {
	if c.MediaCacheCABundle == "" {
		return nil, nil
	}
	return parseBundle(c.MediaCacheCABundle.Reveal())
}

// parseBundle requires that every PEM block is a certificate: skipping one silently
// would cause a failure only when that certificate is needed.
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
				return nil, errors.New("missing or damaged certificate")
			}
			return pool, nil
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("contains a PEM block that is not a certificate")
		}
		pool.AddCert(cert)
	}
}

// decodeBase64 accepts line breaks and missing padding.
func decodeBase64(value string) ([]byte, error) {
	value = strings.TrimRight(strings.Join(strings.Fields(value), ""), "=")
	return base64.RawStdEncoding.DecodeString(value)
}
