package config

import (
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
		if slices.Contains(known, name) || slices.Contains(clientNames, name) {
			continue
		}
		base, isFile := strings.CutSuffix(name, fileSuffix)
		l.warnIf(isFile && slices.Contains(known, base), name, "has no effect: only secrets can be in files. Set %s", base)
		unprefixed, hasPrefix := strings.CutPrefix(name, "TELAPI_")
		if !hasPrefix {
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
		l.problems = append(l.problems, Problem{Name: name, Text: text})
	}
}

// checkCombinations checks settings that depend on each other.
func (l *loader) checkCombinations() {
	c := &l.cfg
	if l.mode == Dev && !c.IsSet("JWT_SECRET") {
		c.sources["JWT_SECRET"] = Generated
	}
	for _, s := range settings() {
		missing := s.Tag.Get("required") == "serve" && !c.IsSet(s.name)
		l.rejectIf(l.mode == Serve && missing, s.name, "", "not set, but required by telapi serve; use %s", s.valid(l.mode))
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
	l.rejectIf(c.TURNSecret == "" && slices.ContainsFunc(c.ICEServerList(), ICEServer.NeedsCredential),
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
	tlsConfig, err := c.EdgeTLS()
	if problem, ok := errors.AsType[Problem](err); ok { // EdgeTLS has no other errors
		l.problems = append(l.problems, problem)
		return
	}
	expiry := tlsConfig.Certificates[0].Leaf.NotAfter
	l.warnIf(time.Now().After(expiry), "EDGE_TLS_FULLCHAIN_B64", "contains a certificate that expired on %s: clients will reject it", expiry.Format(time.DateOnly))
}

// validHeaderList reports whether value has the form of OTEL_EXPORTER_OTLP_HEADERS.
func validHeaderList(value string) bool {
	for header := range strings.SplitSeq(value, ",") {
		name, escaped, found := strings.Cut(header, "=")
		text, err := url.PathUnescape(escaped)
		valid := found && err == nil && httpguts.ValidHeaderFieldName(strings.TrimSpace(name)) && httpguts.ValidHeaderFieldValue(strings.TrimSpace(text))
		if !valid && strings.TrimSpace(header) != "" {
			return false
		}
	}
	return true
}
