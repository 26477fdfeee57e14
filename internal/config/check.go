package config

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"telapi/internal/redact"
	"telapi/internal/strictjson"
)

// clientNames are variables of programs that call the service, such as the examples. They
// are not settings of the service, but can be in the same environment.
var clientNames = []string{"TELAPI_URL", "TELAPI_KEY", "TELAPI_ENDPOINT"}

// checkNames warns about variables without effect and rejects unknown ones that start
// with TELAPI_, because they are misspelled settings of this service.
func (l *loader) checkNames() {
	var known []string
	for _, s := range settings() {
		known = append(known, s.name)
		if s.secret {
			known = append(known, s.fileName())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.env)) {
		l.warnIf(deprecated[name] != "", name, "%s", deprecated[name])
		base, isFile := strings.CutSuffix(name, fileSuffix)
		l.warnIf(isFile && slices.Contains(known, base) && !slices.Contains(known, name), name, "has no effect: only secrets can be in files. Set %s", base)
		unprefixed, hasPrefix := strings.CutPrefix(name, "TELAPI_")
		if !hasPrefix || slices.Contains(known, name) || slices.Contains(clientNames, name) {
			continue
		}
		text := "unknown setting; TELAPI_HOST and TELAPI_PORT are the only ones with this prefix"
		if slices.Contains(known, unprefixed) {
			text = "unknown setting; did you mean " + unprefixed + "?"
		} else if similar := strictjson.Similar(name, known); similar != "" {
			text = "unknown setting; did you mean " + similar + "?"
		}
		if strings.HasPrefix(name, "TELAPI_SERVICE_") || strings.HasPrefix(name, "TELAPI_PORT_") {
			text += "; Kubernetes sets such variables for a Service called telapi: set enableServiceLinks to false"
		}
		l.problems = append(l.problems, Problem{name, "", text})
	}
}

// checkCombinations checks settings that depend on each other.
func (l *loader) checkCombinations() {
	c := &l.cfg
	if _, set := c.sources["JWT_SECRET"]; l.mode == Dev && !set {
		c.sources["JWT_SECRET"] = Generated
	}
	for _, s := range settings() {
		_, set := c.sources[s.name]
		l.rejectIf(l.mode == Serve && s.tag("required") == "serve" && !set, s.name, "", "not set, but required by telapi serve; use %s", s.valid(l.mode))
	}
	if l.mode != Tool {
		l.checkServer()
	}
	if database, err := c.databaseURL(); err == nil && database.query.Get("sslmode") != "" {
		mode := database.query.Get("sslmode")
		l.rejectIf(c.IsSet("DATABASE_SSL_MODE") && mode != c.DatabaseSSLMode, "DATABASE_SSL_MODE", c.DatabaseSSLMode,
			"contradicts sslmode=%s in DATABASE_URL; remove one of them", mode)
		if !c.IsSet("DATABASE_SSL_MODE") {
			c.DatabaseSSLMode, c.sources["DATABASE_SSL_MODE"] = mode, FromURL
		}
	}
	l.warnIf(strings.HasPrefix(c.RedisURL.Reveal(), "rediss:") && c.IsSet("REDIS_TLS_ENABLED") && !c.RedisTLSEnabled,
		"REDIS_TLS_ENABLED", "is false, but REDIS_URL uses rediss://: TLS stays enabled")
	l.rejectIf(c.KVMinReplicas > 0 && c.RedisURL == "",
		"KV_MIN_REPLICAS", strconv.Itoa(c.KVMinReplicas), "the embedded key-value store has no replicas; set REDIS_URL, or use 0")
	l.rejectIf(c.MaxQueuedBytes > 0 && c.MaxQueuedBytes < c.MaxFrameBytes,
		"SESSION_MAX_QUEUED_BYTES", strconv.Itoa(c.MaxQueuedBytes), "less than SESSION_MAX_FRAME_BYTES (%d); use at least that", c.MaxFrameBytes)
	l.rejectIf((c.MediaTLSCertFile == "") != (c.MediaTLSKeyFile == ""),
		"MEDIA_TLS_CERT_FILE", "", "set both MEDIA_TLS_CERT_FILE and MEDIA_TLS_KEY_FILE for HTTPS, or neither")
	l.rejectIf(c.MediaTokenPrevious != "" && c.MediaToken == "",
		"MEDIA_UPLOAD_TOKEN_PREVIOUS", redact.Placeholder, "set without MEDIA_UPLOAD_TOKEN; set the current token there")
	l.warnIf(c.DrainDelay > c.ShutdownTimeout/2,
		"DRAIN_DELAY", "is more than half of SHUTDOWN_TIMEOUT and is reduced to %s, so that requests have time to finish", c.ShutdownTimeout/2)
	for _, prefix := range c.TrustedProxies {
		l.warnIf(prefix.Bits() == 0, "TRUSTED_PROXIES", "contains %s: every client can spoof its address", prefix)
	}
	pii := strings.TrimSpace(l.env["ENABLE_PII_LOGGING"])
	l.warnIf(pii != "" && pii != "true" && pii != "false", "ENABLE_PII_LOGGING", "is %q, which does not enable it: use true or false", pii)
	for _, signal := range []string{"", "TRACES_", "METRICS_", "LOGS_"} {
		// The OpenTelemetry libraries read these headers and log malformed ones, credentials included.
		name := "OTEL_EXPORTER_OTLP_" + signal + "HEADERS"
		l.rejectIf(!validHeaderList(l.env[name]),
			name, redact.Placeholder, "use comma-separated name=value pairs with special characters percent-encoded")
	}
}

// checkServer checks settings that only servers use.
func (l *loader) checkServer() {
	c := &l.cfg
	l.rejectIf(slices.Contains(c.SpeechProviders, "openai") && c.SpeechURL == "",
		"SPEECH_OPENAI_URL", "", "not set, but SPEECH_PROVIDERS contains openai; use https://api.openai.com for OpenAI itself")
	iceServers, err := c.ICEServerList()
	l.rejectIf(err == nil && c.TURNSecret == "" && slices.ContainsFunc(iceServers, ICEServer.NeedsCredential),
		"TURN_SHARED_SECRET", "", "not set, but WEBRTC_ICE_SERVERS contains a TURN server without a credential, which browsers reject")
	if !c.APITLSEnabled {
		return
	}
	for _, name := range []string{"EDGE_TLS_FULLCHAIN_B64", "EDGE_TLS_PRIVKEY_B64"} {
		l.rejectIf(!c.IsSet(name), name, "", "not set, but required by API_TLS_ENABLED=true; use PEM in base64")
	}
	if c.EdgeTLSChain == "" || c.EdgeTLSKey == "" {
		return
	}
	listener, err := c.EdgeTLS()
	if problem, ok := errors.AsType[Problem](err); ok {
		l.problems = append(l.problems, problem)
		return
	}
	expiry := listener.Certificates[0].Leaf.NotAfter
	l.warnIf(time.Now().After(expiry), "EDGE_TLS_FULLCHAIN_B64", "contains a certificate that expired on %s: clients will reject it", expiry.Format(time.DateOnly))
}

// validHeaderList reports whether value has the form of OTEL_EXPORTER_OTLP_HEADERS.
func validHeaderList(value string) bool {
	for header := range strings.SplitSeq(value, ",") {
		name, escaped, found := strings.Cut(header, "=")
		value, err := url.PathUnescape(escaped)
		valid := found && err == nil && httpguts.ValidHeaderFieldName(strings.TrimSpace(name)) && httpguts.ValidHeaderFieldValue(strings.TrimSpace(value))
		if !valid && strings.TrimSpace(header) != "" {
			return false
		}
	}
	return true
}

// EdgeTLS returns the TLS configuration of the API server's listener if API_TLS_ENABLED is true.
func (c Config) EdgeTLS() (*tls.Config, error) {
	const name, hint = "EDGE_TLS_FULLCHAIN_B64", "; use PEM in base64"
	chain, err := decodeBase64(c.EdgeTLSChain.Reveal())
	if err != nil {
		return nil, Problem{name, redact.Placeholder, "invalid base64" + hint}
	}
	key, err := decodeBase64(c.EdgeTLSKey.Reveal())
	if err != nil {
		return nil, Problem{"EDGE_TLS_PRIVKEY_B64", redact.Placeholder, "invalid base64" + hint}
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, Problem{name, redact.Placeholder, "does not match EDGE_TLS_PRIVKEY_B64: " + err.Error() + hint}
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

// MediaCacheCAs returns the root certificates for the media service, or nil for the
// system's.
func (c Config) MediaCacheCAs() (*x509.CertPool, error) {
	if c.MediaCacheCABundle == "" {
		return nil, nil
	}
	return parseBundle(c.MediaCacheCABundle.Reveal())
}

// parseBundle parses PEM certificates, plain or in base64. It rejects every other PEM
// block, because a skipped certificate would only be noticed when it is needed.
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
