package config

import (
	"cmp"
	"crypto/rand"
	"errors"
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
type Problem struct{ Name, Value, Text string }

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
type Warning struct{ Name, Text string }

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
		l.take(s, fields.FieldByIndex(s.Index))
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
	if s.secret && s.tag("kind") == "" { // to be taken to the letter
		if value != strings.TrimSpace(value) {
			l.warn(s.name, "begins or ends with white space, which is taken as part of it")
		}
	} else {
		value = strings.TrimSpace(value)
	}
	if value == "" {
		value, source = s.tag("default"), Default
		if l.mode == Dev {
			value = cmp.Or(s.tag("dev"), value)
		}
	}
	if value == "" {
		return
	}
	l.cfg.sources[s.name] = source
	if err := s.assign(field, value, l.mode); err != nil {
		text := "allowed: " + s.allowed(l.mode)
		if !errors.Is(err, errNotAllowed) {
			text = err.Error() + "; " + text
		}
		l.problem(s.name, s.show(value), "%s", text)
	}
}

var errNotAllowed = errors.New("not allowed")

// assign parses value into the field. Its error never repeats the value.
func (s setting) assign(field reflect.Value, value string, mode Mode) (err error) {
	switch p := field.Addr().Interface().(type) {
	case *bool:
		if *p, err = strconv.ParseBool(strings.ToLower(value)); err != nil {
			return errNotAllowed
		}
	case *int:
		return within(p, value, s, strconv.Atoi)
	case *time.Duration:
		return within(p, value, s, time.ParseDuration)
	case *[]netip.Prefix:
		for part := range strings.SplitSeq(value, ",") {
			prefix, ok := parsePrefix(strings.TrimSpace(part))
			if !ok {
				return errNotAllowed
			}
			*p = append(*p, prefix)
		}
	case *[]string:
		for part := range strings.SplitSeq(value, ",") {
			part = strings.TrimSpace(part)
			if part == "" || s.oneof != nil && (!slices.Contains(s.oneof, part) || slices.Contains(*p, part)) {
				return errNotAllowed
			}
			*p = append(*p, part)
		}
	case *redact.Secret:
		if least, _ := strconv.Atoi(s.tag("min")); len(value) < least && mode != Tool {
			return fmt.Errorf("has %d bytes", len(value))
		}
		*p = redact.Secret(value)
		return s.checkKind(value, mode)
	case *string:
		if s.oneof != nil {
			if value = strings.ToLower(value); !slices.Contains(s.oneof, value) {
				return errNotAllowed
			}
		}
		*p = value
		if kind, _ := s.kindIn(mode); kind == "url" {
			*p = strings.TrimRight(value, "/") // so that paths can be appended
		}
		return s.checkKind(value, mode)
	default:
		panic("config: no parser for the type of " + s.name)
	}
	return nil
}

// within takes a number that lies in the setting's bounds.
func within[T cmp.Ordered](to *T, value string, s setting, parse func(string) (T, error)) (err error) {
	if *to, err = parse(value); err != nil || *to < must(parse(s.tag("min"))) || *to > must(parse(s.tag("max"))) {
		return errNotAllowed
	}
	return nil
}

func (s setting) checkKind(value string, mode Mode) (err error) {
	switch kind, detail := s.kindIn(mode); kind {
	case "url":
		var a address
		if a, err = parseAddress(value, strings.Split(detail, ",")); err == nil {
			err = a.fits(s.secret)
		}
	case "pem":
		_, err = parseBundle(value)
	case "ice":
		_, err = parseICEServers(value)
	}
	return err
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
			text += "; Kubernetes sets such names for a Service called telapi: set enableServiceLinks to false"
		}
		l.problem(name, "", "%s", text)
	}
}

// judgeTogether looks at what single values cannot tell.
func (l *loader) judgeTogether() {
	c := &l.cfg
	if l.mode == Serve {
		for _, s := range settings() {
			if _, set := c.sources[s.name]; s.tag("required") == "serve" && !set {
				l.problem(s.name, "", "is not set, and telapi serve needs it; allowed: %s", s.allowed(l.mode))
			}
		}
	}
	if _, set := c.sources["JWT_SECRET"]; l.mode == Dev && !set {
		c.JWTSecret = redact.Secret(rand.Text() + rand.Text())
		c.sources["JWT_SECRET"] = Generated
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
	if strings.HasPrefix(c.RedisURL.Reveal(), "rediss:") && c.IsSet("REDIS_TLS_ENABLED") && !c.RedisTLSEnabled {
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
		l.problem("MEDIA_UPLOAD_TOKEN_PREVIOUS", redact.Placeholder, "is set, but MEDIA_UPLOAD_TOKEN is not: the current token goes there")
	}
	if c.DrainDelay > c.ShutdownTimeout/2 {
		l.warn("DRAIN_DELAY", "is more than half of SHUTDOWN_TIMEOUT, which must leave time for requests to finish: it is cut to %s", c.ShutdownTimeout/2)
	}
	l.judgeCollectorHeaders()
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
