package config

import (
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"telapi/internal/redact"
)

// Problem is one thing wrong with the configuration. Value is fit to be shown:
// secrets in it are masked.
type Problem struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
	Text  string `json:"text"`
}

func (p Problem) Error() string {
	if p.Value == "" {
		return p.Name + ": " + p.Text
	}
	return p.Name + "=" + p.Value + ": " + p.Text
}

// Problems is everything that is wrong, so that it can be mended at once.
type Problems []Problem

func (p Problems) Error() string {
	var b strings.Builder
	b.WriteString("the configuration is not usable:")
	for _, problem := range p {
		b.WriteString("\n  " + problem.Error())
	}
	return b.String()
}

// Warning is something that works, but hardly as intended.
type Warning struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

func (w Warning) String() string { return w.Name + " " + w.Text }

// Load reads the configuration from an environment in the form of os.Environ.
// The error, if any, is Problems. Warnings come with good configurations too.
// An empty value counts as unset.
func Load(environ []string, mode Mode) (Config, []Warning, error) {
	l := loader{mode: mode, env: make(map[string]string, len(environ))}
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); value != "" {
			l.env[name] = value
		} else {
			delete(l.env, name)
		}
	}
	l.cfg.sources = map[string]Source{}
	l.judgeNames()
	fields := reflect.ValueOf(&l.cfg).Elem()
	for _, s := range settings() {
		l.take(s, fields.FieldByIndex(s.index))
	}
	l.judgeTogether()
	if len(l.problems) > 0 {
		return Config{}, l.warnings, l.problems
	}
	return l.cfg, l.warnings, nil
}

type loader struct {
	mode     Mode
	env      map[string]string
	cfg      Config
	warnings []Warning
	problems Problems
}

func (l *loader) warn(name, format string, args ...any) {
	l.warnings = append(l.warnings, Warning{name, fmt.Sprintf(format, args...)})
}

func (l *loader) problem(name, value, format string, args ...any) {
	l.problems = append(l.problems, Problem{name, value, fmt.Sprintf(format, args...)})
}

// take fills one field from the environment or its default.
func (l *loader) take(s setting, field reflect.Value) {
	value, source := l.env[s.name], Environment
	if !s.opaque {
		value = strings.TrimSpace(value)
	} else if value != strings.TrimSpace(value) {
		l.warn(s.name, "begins or ends with white space, which is taken as part of it")
	}
	if value == "" {
		value, source = s.def, Default
	}
	if value == "" {
		return
	}
	l.cfg.sources[s.name] = source
	if reason := s.assign(field, value, l.mode); reason != "" {
		l.problem(s.name, s.show(value), "%s", reason)
	}
}

// assign parses value into the field. It returns what is allowed where the
// value is not, and never repeats the value.
func (s setting) assign(field reflect.Value, value string, mode Mode) (reason string) {
	refused := "allowed: " + s.allowed(mode)
	switch p := field.Addr().Interface().(type) {
	case *bool:
		switch strings.ToLower(value) {
		case "true", "1":
			*p = true
		case "false", "0":
			*p = false
		default:
			return refused
		}
	case *int:
		n, err := strconv.Atoi(value)
		if err != nil || n < must(strconv.Atoi(s.min)) || n > must(strconv.Atoi(s.max)) {
			return refused
		}
		*p = n
	case *time.Duration:
		d, err := time.ParseDuration(value)
		if err != nil || d < must(time.ParseDuration(s.min)) || d > must(time.ParseDuration(s.max)) {
			return refused
		}
		*p = d
	case *[]netip.Prefix:
		for part := range strings.SplitSeq(value, ",") {
			prefix, ok := parsePrefix(strings.TrimSpace(part))
			if !ok {
				return refused
			}
			*p = append(*p, prefix)
		}
	case *[]string:
		for part := range strings.SplitSeq(value, ",") {
			part = strings.TrimSpace(part)
			if part == "" || s.oneof != nil && (!slices.Contains(s.oneof, part) || slices.Contains(*p, part)) {
				return refused
			}
			*p = append(*p, part)
		}
	case *redact.Secret:
		if s.min != "" && mode != Tool && len(value) < must(strconv.Atoi(s.min)) {
			return fmt.Sprintf("has %d bytes; %s", len(value), refused)
		}
		*p = redact.Secret(value)
		return s.checkKind(value, mode, refused)
	case *string:
		if s.oneof != nil {
			i := slices.Index(s.oneof, strings.ToLower(value))
			if i < 0 {
				return refused
			}
			value = s.oneof[i]
		}
		*p = value
		if strings.HasPrefix(s.kind, "url:") {
			*p = strings.TrimRight(value, "/") // so that paths can be appended
		}
		return s.checkKind(value, mode, refused)
	default:
		panic("config: no parser for the type of " + s.name)
	}
	return ""
}

func (s setting) checkKind(value string, mode Mode, refused string) string {
	var err error
	switch kind := s.kindIn(mode); {
	case strings.HasPrefix(kind, "url:"):
		var a address
		if a, err = parseAddress(value, strings.Split(kind[len("url:"):], ",")); err == nil {
			err = a.fits(s.secret)
		}
	case kind == "pem":
		_, err = parseBundle(value)
	case kind == "ice":
		_, err = parseICEServers(value)
	}
	if err != nil {
		return err.Error() + "; " + refused
	}
	return ""
}

// parsePrefix takes an address for the range of that one address. Ranges of
// IPv4 written as IPv6 come out as IPv4, since clients do as well.
func parsePrefix(s string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, false
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if addr := prefix.Addr(); addr.Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, false
		}
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), true
}

// judgeNames looks at names that are set and should not be. One that begins
// with TELAPI_ can only be meant for this service, so it is mistyped.
func (l *loader) judgeNames() {
	var known []string
	for _, s := range settings() {
		known = append(known, s.name)
	}
	for _, name := range slices.Sorted(maps.Keys(l.env)) {
		if text, ok := deprecated[name]; ok {
			l.warn(name, "%s", text)
		}
		bare, ours := strings.CutPrefix(name, "TELAPI_")
		if !ours || slices.Contains(known, name) {
			continue
		}
		text := "no such setting; TELAPI_PORT is the only one of this prefix"
		if slices.Contains(known, bare) {
			text = "no such setting; did you mean " + bare + "?"
		}
		if strings.HasPrefix(name, "TELAPI_SERVICE_") || strings.HasPrefix(name, "TELAPI_PORT_") {
			text += " Kubernetes sets such names for a Service called telapi: set enableServiceLinks to false"
		}
		l.problem(name, "", "%s", text)
	}
}

// judgeTogether looks at what single values cannot tell.
func (l *loader) judgeTogether() {
	c := &l.cfg
	if l.mode == Serve {
		for _, s := range settings() {
			if _, set := c.sources[s.name]; s.required == "serve" && !set {
				l.problem(s.name, "", "is not set, and telapi serve needs it; allowed: %s", s.allowed(l.mode))
			}
		}
	}
	if _, set := c.sources["JWT_SECRET"]; l.mode == Dev && !set {
		c.JWTSecret = redact.Secret(rand.Text() + rand.Text())
		c.sources["JWT_SECRET"] = Generated
	}
	if l.mode == Dev && c.SpeechProviders == nil {
		c.SpeechProviders, c.sources["SPEECH_PROVIDERS"] = []string{"tone"}, Generated
	}
	if l.mode != Tool && slices.Contains(c.SpeechProviders, "openai") && c.SpeechURL == "" {
		l.problem("SPEECH_OPENAI_URL", "", "is not set, and SPEECH_PROVIDERS names openai; for OpenAI itself it is https://api.openai.com")
	}
	if c.APITLSEnabled && l.mode != Tool {
		l.judgeEdgeTLS()
	}
	if url, err := c.databaseURL(); err == nil && url.query.Get("sslmode") != "" {
		mode := url.query.Get("sslmode")
		switch {
		case !c.IsSet("DATABASE_SSL_MODE"):
			c.DatabaseSSLMode, c.sources["DATABASE_SSL_MODE"] = mode, FromURL
		case mode != c.DatabaseSSLMode:
			l.warn("DATABASE_SSL_MODE", "is %s and replaces sslmode=%s of DATABASE_URL: remove one of them", c.DatabaseSSLMode, mode)
		}
	}
	if r, err := c.Redis(); err == nil && r.TLS && c.IsSet("REDIS_TLS_ENABLED") && !c.RedisTLSEnabled {
		l.warn("REDIS_TLS_ENABLED", "is false, but REDIS_URL asks for TLS with rediss://: TLS stays on")
	}
	if list, err := c.ICEServerList(); err == nil && l.mode != Tool && c.TURNSecret == "" && slices.ContainsFunc(list, ICEServer.NeedsCredential) {
		l.problem("TURN_SHARED_SECRET", "", "is not set, and WEBRTC_ICE_SERVERS has a TURN server without a credential, which browsers refuse")
	}
	if c.MaxQueuedBytes > 0 && c.MaxQueuedBytes < c.MaxFrameBytes {
		l.problem("SESSION_MAX_QUEUED_BYTES", strconv.Itoa(c.MaxQueuedBytes), "is less than SESSION_MAX_FRAME_BYTES, %d: such a frame could not be sent on", c.MaxFrameBytes)
	}
	if (c.MediaTLSCertFile == "") != (c.MediaTLSKeyFile == "") {
		l.problem("MEDIA_TLS_CERT_FILE", "", "goes with MEDIA_TLS_KEY_FILE: set both for HTTPS, or neither")
	}
	if c.MediaTokenPrevious != "" && c.MediaToken == "" {
		l.problem("MEDIA_UPLOAD_TOKEN_PREVIOUS", redact.Mark, "is set, but MEDIA_UPLOAD_TOKEN is not: the current token goes there")
	}
	if c.DrainDelay > c.ShutdownTimeout/2 {
		l.warn("DRAIN_DELAY", "is more than half of SHUTDOWN_TIMEOUT, which must leave time for requests to finish: it is cut to %s", c.ShutdownTimeout/2)
	}
	for _, prefix := range c.TrustedProxies {
		if prefix.Bits() == 0 {
			l.warn("TRUSTED_PROXIES", "contains %s: every client can claim any address", prefix)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic("config: bad tag: " + err.Error())
	}
	return v
}
