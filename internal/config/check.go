package config

import (
	"crypto/rand"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"telapi/internal/redact"
)

// checkNames warns about deprecated variables and rejects unknown ones that start
// with TELAPI_: they can only be meant for this service.
func (l *loader) checkNames() {
	var known []string
	for _, s := range settings() {
		known = append(known, s.name)
	}
	for _, name := range slices.Sorted(maps.Keys(l.env)) {
		if text, ok := deprecated[name]; ok {
			l.warn(name, "%s", text)
		}
		bare, prefixed := strings.CutPrefix(name, "TELAPI_")
		if !prefixed || slices.Contains(known, name) {
			continue
		}
		text := "unknown setting; TELAPI_PORT is the only one with this prefix"
		if slices.Contains(known, bare) {
			text = "unknown setting; did you mean " + bare + "?"
		}
		if strings.HasPrefix(name, "TELAPI_SERVICE_") || strings.HasPrefix(name, "TELAPI_PORT_") {
			text += "; Kubernetes sets such variables for a Service called telapi: set enableServiceLinks to false"
		}
		l.problem(name, "", "%s", text)
	}
}

// checkCombinations checks settings that depend on each other.
func (l *loader) checkCombinations() {
	c := &l.cfg
	if _, set := c.sources["JWT_SECRET"]; l.mode == Dev && !set {
		c.JWTSecret = redact.Secret(rand.Text() + rand.Text())
		c.sources["JWT_SECRET"] = Generated
	}
	if l.mode == Serve {
		for _, s := range settings() {
			if _, set := c.sources[s.name]; s.tag("required") == "serve" && !set {
				l.problem(s.name, "", "not set, but required by telapi serve; use %s", s.valid(l.mode))
			}
		}
	}
	if l.mode != Tool {
		l.checkServer()
	}
	if url, err := c.databaseURL(); err == nil && url.query.Get("sslmode") != "" {
		mode := url.query.Get("sslmode")
		switch {
		case !c.IsSet("DATABASE_SSL_MODE"):
			c.DatabaseSSLMode, c.sources["DATABASE_SSL_MODE"] = mode, FromURL
		case mode != c.DatabaseSSLMode:
			l.warn("DATABASE_SSL_MODE", "is %s and overrides sslmode=%s in DATABASE_URL: remove one of them", c.DatabaseSSLMode, mode)
		}
	}
	if strings.HasPrefix(c.RedisURL.Reveal(), "rediss:") && c.IsSet("REDIS_TLS_ENABLED") && !c.RedisTLSEnabled {
		l.warn("REDIS_TLS_ENABLED", "is false, but REDIS_URL uses rediss://: TLS stays enabled")
	}
	if c.MaxQueuedBytes > 0 && c.MaxQueuedBytes < c.MaxFrameBytes {
		l.problem("SESSION_MAX_QUEUED_BYTES", strconv.Itoa(c.MaxQueuedBytes), "less than SESSION_MAX_FRAME_BYTES (%d); use at least that", c.MaxFrameBytes)
	}
	if (c.MediaTLSCertFile == "") != (c.MediaTLSKeyFile == "") {
		l.problem("MEDIA_TLS_CERT_FILE", "", "set both MEDIA_TLS_CERT_FILE and MEDIA_TLS_KEY_FILE for HTTPS, or neither")
	}
	if c.MediaTokenPrevious != "" && c.MediaToken == "" {
		l.problem("MEDIA_UPLOAD_TOKEN_PREVIOUS", redact.Placeholder, "set without MEDIA_UPLOAD_TOKEN; set the current token there")
	}
	if c.DrainDelay > c.ShutdownTimeout/2 {
		l.warn("DRAIN_DELAY", "is more than half of SHUTDOWN_TIMEOUT and is reduced to %s, so that requests have time to finish", c.ShutdownTimeout/2)
	}
	for _, prefix := range c.TrustedProxies {
		if prefix.Bits() == 0 {
			l.warn("TRUSTED_PROXIES", "contains %s: every client can spoof its address", prefix)
		}
	}
	for _, signal := range []string{"", "TRACES_", "METRICS_", "LOGS_"} {
		// The OpenTelemetry libraries read these headers and log malformed ones, credentials included.
		name := "OTEL_EXPORTER_OTLP_" + signal + "HEADERS"
		if value := l.env[name]; value != "" && !validHeaderList(value) {
			l.problem(name, redact.Placeholder, "use comma-separated name=value pairs with special characters percent-encoded")
		}
	}
}

// checkServer checks settings that only servers use.
func (l *loader) checkServer() {
	c := &l.cfg
	if slices.Contains(c.SpeechProviders, "openai") && c.SpeechURL == "" {
		l.problem("SPEECH_OPENAI_URL", "", "not set, but SPEECH_PROVIDERS contains openai; use https://api.openai.com for OpenAI itself")
	}
	if list, err := c.ICEServerList(); err == nil && c.TURNSecret == "" && slices.ContainsFunc(list, ICEServer.NeedsCredential) {
		l.problem("TURN_SHARED_SECRET", "", "not set, but WEBRTC_ICE_SERVERS contains a TURN server without a credential, which browsers reject")
	}
	if !c.APITLSEnabled {
		return
	}
	complete := true
	for _, name := range []string{"EDGE_TLS_FULLCHAIN_B64", "EDGE_TLS_PRIVKEY_B64"} {
		if !c.IsSet(name) {
			l.problem(name, "", "not set, but required by API_TLS_ENABLED=true; use PEM in base64")
			complete = false
		}
	}
	if !complete {
		return
	}
	edge, err := c.EdgeTLS()
	var p Problem
	if errors.As(err, &p) {
		l.problems = append(l.problems, p)
	} else if until := edge.Certificates[0].Leaf.NotAfter; time.Now().After(until) {
		l.warn("EDGE_TLS_FULLCHAIN_B64", "contains a certificate that expired on %s: clients will reject it", until.Format(time.DateOnly))
	}
}

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
