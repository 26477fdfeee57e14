package config

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"telapi/internal/redact"
)

// address is a parsed URL that may have several hosts.
type address struct {
	*url.URL            // with the first host only
	hosts    []*url.URL // Hostname and Port of each
	query    url.Values
}

// parseAddress parses a URL. Its errors never contain the value, unlike those of net/url.
func parseAddress(raw string, schemes []string) (a address, err error) {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return a, errors.New("not a URL")
	}
	if schemes != nil && !slices.Contains(schemes, scheme) {
		return a, errors.New("unsupported scheme")
	}
	tail := ""
	if end := strings.IndexAny(rest, "/?#"); end >= 0 {
		rest, tail = rest[:end], rest[end:]
	}
	if strings.Contains(tail, "@") {
		// A password contains an unescaped / or ?. Half of it would be printed as the path.
		return a, errors.New("contains an @ after the host")
	}
	userEnd := strings.LastIndexByte(rest, '@') + 1
	user, hosts := rest[:userEnd], strings.Split(rest[userEnd:], ",")
	if a.URL, err = url.Parse(scheme + "://" + user + hosts[0] + tail); err != nil || a.Scheme != scheme {
		return a, errors.New("not a URL")
	}
	if a.query, err = url.ParseQuery(a.RawQuery); err != nil {
		return a, errors.New("malformed query")
	}
	if a.Host == "" && a.query.Get("host") != "" && strings.HasPrefix(scheme, "postgres") {
		return a, nil // PostgreSQL also accepts hosts and sockets in the query
	}
	for _, host := range hosts {
		h, err := url.Parse("http://" + host)
		if err != nil || h.Hostname() == "" || h.Host != host {
			return a, errors.New("missing or malformed host")
		}
		if port := h.Port(); port != "" {
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
				return a, errors.New("port out of range 1 to 65535")
			}
		}
		a.hosts = append(a.hosts, h)
	}
	return a, nil
}

// addrs returns host:port for each host.
func (a address) addrs(defaultPort string) (list []string) {
	for _, h := range a.hosts {
		list = append(list, net.JoinHostPort(h.Hostname(), cmp.Or(h.Port(), defaultPort)))
	}
	return list
}

// check rejects parts of a valid URL that the setting does not support.
func (a address) check(secret bool) error {
	switch {
	case a.Fragment != "":
		return errors.New("contains a fragment")
	case strings.HasPrefix(a.Scheme, "redis"):
		_, err := a.redis()
		return err
	case strings.HasPrefix(a.Scheme, "postgres"):
		if len(a.query["sslmode"]) > 1 {
			return errors.New("contains several sslmode parameters")
		}
		if mode := a.query.Get("sslmode"); a.query.Has("sslmode") &&
			!slices.Contains([]string{"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}, mode) {
			return errors.New("unknown sslmode")
		}
	case len(a.hosts) > 1:
		return errors.New("contains several hosts")
	case !secret && a.User != nil:
		return errors.New("contains a user or password")
	case !secret && len(a.query) > 0:
		return errors.New("contains a query")
	}
	return nil
}

// maskURL returns the URL without its password and query.
func maskURL(raw string) string {
	a, err := parseAddress(raw, nil)
	if err != nil {
		return redact.Placeholder
	}
	user, query := "", ""
	if a.User != nil {
		if _, hasPassword := a.User.Password(); hasPassword {
			user = url.User(a.User.Username()).String() + ":"
		}
		user += redact.Placeholder + "@"
	}
	if a.RawQuery != "" {
		query = "?" + redact.Placeholder
	}
	var hosts []string
	for _, h := range a.hosts {
		hosts = append(hosts, h.Host)
	}
	return a.Scheme + "://" + user + strings.Join(hosts, ",") + a.EscapedPath() + query
}

// databaseURL parses DATABASE_URL. It fails if the variable is not set.
func (c Config) databaseURL() (address, error) {
	return parseAddress(c.DatabaseURL.Reveal(), []string{"postgres", "postgresql"})
}

// DatabaseDSN returns DATABASE_URL with the effective sslmode, which is always set
// so that the driver's default does not apply. Empty means SQLite.
func (c Config) DatabaseDSN() redact.Secret {
	a, err := c.databaseURL()
	if err != nil {
		return c.DatabaseURL // empty, or not checked by Load: the driver reports the error
	}
	a.query.Set("sslmode", cmp.Or(c.DatabaseSSLMode, a.query.Get("sslmode"), "disable"))
	a.RawQuery = a.query.Encode()
	a.Host = strings.Join(a.addrs("5432"), ",") // the driver requires all ports or none
	return redact.Secret(a.String())
}

// RedisOptions describe how to connect to the key-value store.
type RedisOptions struct {
	Addrs    []string // host:port; several mean a cluster
	Username string
	Password redact.Secret
	DB       int
	TLS      *tls.Config // nil: no TLS
	Embedded bool        // Addrs is the embedded store of a telapi server
}

// ParseRedisURL parses a URL of the form
// redis://[[user]:password@]host[:port][,host[:port]…][/database]. The scheme
// rediss enables TLS. Errors do not contain the URL.
func ParseRedisURL(raw string) (RedisOptions, error) {
	a, err := parseAddress(raw, []string{"redis", "rediss"})
	if err != nil {
		return RedisOptions{}, err
	}
	return a.redis()
}

// Redis returns the options of REDIS_URL and the TLS settings. Without REDIS_URL it
// returns no addresses: the key-value store is embedded.
func (c Config) Redis() (RedisOptions, error) {
	if c.RedisURL == "" {
		return RedisOptions{}, nil
	}
	o, err := ParseRedisURL(c.RedisURL.Reveal())
	if err != nil {
		return RedisOptions{}, fmt.Errorf("REDIS_URL: %w", err)
	}
	if o.TLS == nil && c.RedisTLSEnabled {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if o.TLS != nil && c.RedisTLSCAFile != "" {
		bundle, err := os.ReadFile(c.RedisTLSCAFile)
		if err == nil {
			o.TLS.RootCAs, err = parseBundle(string(bundle))
		}
		if err != nil {
			return RedisOptions{}, fmt.Errorf("REDIS_TLS_CA_FILE=%s: %w", c.RedisTLSCAFile, err)
		}
	}
	return o, nil
}

// redis returns the connection options of a Redis URL.
func (a address) redis() (o RedisOptions, err error) {
	o.Addrs = a.addrs("6379")
	if a.Scheme == "rediss" {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if a.User != nil {
		password, ok := a.User.Password()
		if !ok {
			return o, errors.New("has a user without a password; a password alone is written :password@")
		}
		o.Username, o.Password = a.User.Username(), redact.Secret(password)
	}
	if db := strings.TrimPrefix(a.Path, "/"); db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return o, errors.New("the path is not a database number")
		}
	}
	switch {
	case o.DB != 0 && len(o.Addrs) > 1:
		return o, errors.New("a cluster only has database 0")
	case len(a.query) > 0:
		return o, errors.New("contains a query")
	}
	return o, nil
}

// OTLPEndpoints are the URLs to which each signal is exported. Signals without one are
// not exported.
type OTLPEndpoints struct{ Traces, Metrics, Logs string }

// OTLP returns where signals are exported: to the endpoint of the signal, or else below
// OTEL_EXPORTER_OTLP_ENDPOINT.
func (c Config) OTLP() OTLPEndpoints {
	own := OTLPEndpoints{c.OTLPTraces, c.OTLPMetrics, c.OTLPLogs}
	if base := c.OTLPEndpoint; base != "" {
		return OTLPEndpoints{cmp.Or(own.Traces, base+"/v1/traces"), cmp.Or(own.Metrics, base+"/v1/metrics"), cmp.Or(own.Logs, base+"/v1/logs")}
	}
	return own
}

// ICEServer is a STUN or TURN server.
type ICEServer struct {
	URLs       []string      `json:"urls"`
	Username   string        `json:"username"`
	Credential redact.Secret `json:"credential"`
}

// NeedsCredential reports whether it is a TURN server without a credential, which
// browsers reject.
func (s ICEServer) NeedsCredential() bool {
	return s.Username == "" && slices.ContainsFunc(s.URLs, func(u string) bool { return strings.HasPrefix(u, "turn") })
}

// ICEServerList returns the servers in WEBRTC_ICE_SERVERS, which Load has checked.
func (c Config) ICEServerList() []ICEServer {
	list, _ := parseICEServers(c.ICEServers.Reveal())
	return list
}

// parseICEServers parses a JSON list as in RTCConfiguration, or comma-separated
// URLs. Its errors never contain the value, which may hold credentials.
func parseICEServers(value string) ([]ICEServer, error) {
	if value == "" {
		return nil, nil
	}
	var list []ICEServer
	if strings.HasPrefix(value, "[") {
		oneOrMore := json.UnmarshalFunc(func(raw []byte, urls *[]string) error {
			if one := ""; json.Unmarshal(raw, &one) == nil {
				*urls = []string{one}
				return nil
			}
			return json.Unmarshal(raw, urls)
		})
		if json.Unmarshal([]byte(value), &list, json.RejectUnknownMembers(true), json.WithUnmarshalers(oneOrMore)) != nil {
			return nil, errors.New("not a JSON list of {urls, username, credential}")
		}
	} else {
		var stun, turn ICEServer // separate entries, because only TURN needs credentials
		for u := range strings.SplitSeq(value, ",") {
			if u = strings.TrimSpace(u); strings.HasPrefix(u, "turn") {
				turn.URLs = append(turn.URLs, u)
			} else {
				stun.URLs = append(stun.URLs, u)
			}
		}
		list = slices.DeleteFunc([]ICEServer{stun, turn}, func(s ICEServer) bool { return s.URLs == nil })
	}
	for _, server := range list {
		if len(server.URLs) == 0 || (server.Username == "") != (server.Credential == "") {
			return nil, errors.New("an entry lacks urls, or has only one of username and credential")
		}
		for _, u := range server.URLs {
			if !validICEURL(u) {
				return nil, errors.New("contains an invalid URL")
			}
		}
	}
	return list, nil
}

// validICEURL checks the syntax of RFC 7064 and RFC 7065.
func validICEURL(u string) bool {
	scheme, rest, _ := strings.Cut(u, ":")
	a, err := parseAddress(scheme+"://"+rest, []string{"stun", "stuns", "turn", "turns"})
	if err != nil || len(a.hosts) != 1 || a.User != nil || a.Path != "" || strings.Contains(u, "#") {
		return false
	}
	_, query, found := strings.Cut(rest, "?")
	return !found || strings.HasPrefix(scheme, "turn") && (query == "transport=udp" || query == "transport=tcp")
}

// NormalizeOrigin returns an origin as browsers send it: a scheme, a host in lower case, and
// a port unless it is the default. ok is false if s is not an origin.
func NormalizeOrigin(s string) (origin string, ok bool) {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" {
		return "", false
	}
	if strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || strings.ContainsAny(u.Host, "* ") {
		return "", false
	}
	host := strings.ToLower(u.Host)
	if port := u.Port(); port == "" || u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" {
		host = strings.TrimSuffix(host, ":"+port) // or a colon without a port
	}
	return u.Scheme + "://" + host, true
}
