// Package config loads the configuration from environment variables. The tags of
// Config name each variable, its default, valid values and description; loading,
// error messages and docs/configuration.md are derived from them.
package config

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"telapi/internal/redact"
)

// Config is the effective configuration. Only this package reads the environment.
//
// Tags: env is the variable, default its default, and dev that of `telapi dev` if it differs.
// min, max and oneof constrain the value; min of a secret is in bytes. kind is the format of a
// text, and serve that of `telapi serve` if it differs. A bool of the kind true is false if
// the value is anything but true. required names the command that requires a value.
type Config struct {
	_                struct{} `section:"Features"`
	FeatureAPIAccess bool     `env:"FEATURE_API_ACCESS" default:"true" doc:"If false, only health, metrics and webhook routes exist."`
	FeatureWebRTC    bool     `env:"FEATURE_WEBRTC" default:"true" doc:"If false, requests for WebRTC call tokens get 503. The other modes work."`
	Playground       bool     `env:"PLAYGROUND_ENABLED" default:"false" dev:"true" doc:"Serves the playground at /playground and the API reference at /docs. In telapi dev: true."`

	_               struct{}       `section:"Server"`
	Port            int            `env:"TELAPI_PORT" default:"3001" min:"0" max:"65535" doc:"Port of the API server. 0: a free port."`
	Host            string         `env:"TELAPI_HOST" dev:"127.0.0.1" doc:"Address on which the API server listens. Empty: all. In telapi dev: 127.0.0.1."`
	PublicURL       string         `env:"PUBLIC_URL" kind:"url:http,https" doc:"Base URL at which clients reach the service, for URLs in responses. Empty: the host that a trusted proxy forwards, or the address of the connection."`
	TrustedProxies  []netip.Prefix `env:"TRUSTED_PROXIES" doc:"Proxies whose X-Forwarded-For, -Proto and -Host headers are trusted."`
	TeamShare       int            `env:"TEAM_SHARE_PERCENT" default:"25" dev:"100" min:"5" max:"100" doc:"Share of an instance's WebSockets and memory that one team may use. Set 100 for a single team. In telapi dev: 100."`
	ShutdownTimeout time.Duration  `env:"SHUTDOWN_TIMEOUT" default:"30s" min:"1s" max:"10m" doc:"Maximum duration of a graceful shutdown; then requests are aborted. The process manager's kill timeout must be 10s longer."`
	DrainDelay      time.Duration  `env:"DRAIN_DELAY" default:"5s" dev:"0s" min:"0s" max:"5m" doc:"How long a stopping instance still serves while /health returns 503. At most half of SHUTDOWN_TIMEOUT. In telapi dev: 0s."`
	APITLSEnabled   bool           `env:"API_TLS_ENABLED" default:"false" doc:"Serves TLS 1.2 or later on TELAPI_PORT, with the certificate in EDGE_TLS_*."`
	EdgeTLSChain    redact.Secret  `env:"EDGE_TLS_FULLCHAIN_B64" kind:"base64pem" doc:"Certificate chain, leaf certificate first."`
	EdgeTLSKey      redact.Secret  `env:"EDGE_TLS_PRIVKEY_B64" kind:"base64pem" doc:"Private key."`

	_              struct{}      `section:"Authentication"`
	JWTSecret      redact.Secret `env:"JWT_SECRET" min:"32" required:"serve" doc:"Verifies console JWTs; a derived key signs call tokens. Must equal the web console's secret, or every console JWT gets 401. telapi dev generates one in DATA_DIR."`
	JWTPrevious    redact.Secret `env:"JWT_SECRET_PREVIOUS" min:"32" doc:"Verifies JWTs but signs none, for rotating JWT_SECRET."`
	JWTMaxAge      time.Duration `env:"JWT_MAX_AGE" default:"24h" min:"1m" max:"8760h" doc:"Maximum lifetime of a console JWT. Longer ones get 401."`
	AuditRetention time.Duration `env:"AUDIT_RETENTION" default:"9600h" min:"0s" max:"87600h" doc:"Audit log entries are deleted after this time (9600h are 400 days). 0: never."`
	ConsoleOrigins []string      `env:"CONSOLE_ORIGINS" kind:"origins" doc:"Origins whose pages may call /api/v1 with a console JWT. Empty: only the API's own."`
	MetricsToken   redact.Secret `env:"METRICS_TOKEN" doc:"If set, /metrics requires it as a bearer token."`

	_                   struct{}      `section:"Sessions"`
	ICEServers          redact.Secret `env:"WEBRTC_ICE_SERVERS" kind:"ice" doc:"STUN and TURN servers for WebRTC. TURN servers without a credential get one per session, derived from TURN_SHARED_SECRET."`
	TURNSecret          redact.Secret `env:"TURN_SHARED_SECRET" doc:"Secret shared with the TURN servers (coturn: static-auth-secret)."`
	SessionIdleTimeout  time.Duration `env:"SESSION_IDLE_TIMEOUT" default:"15m" min:"1s" max:"24h" doc:"A session without a connected browser expires after this time."`
	SessionRetention    time.Duration `env:"SESSION_RETENTION" default:"720h" min:"0s" max:"87600h" doc:"Ended sessions and their browser actions are deleted after this time, one day at least (720h are 30 days). 0: never."`
	PingInterval        time.Duration `env:"SESSION_PING_INTERVAL" default:"25s" min:"1s" max:"5m" doc:"Interval of WebSocket pings. After two without a response, the connection loses its session."`
	MaxFrameBytes       int           `env:"SESSION_MAX_FRAME_BYTES" default:"65536" min:"1024" max:"1048576" doc:"Maximum size of a frame from the browser."`
	MaxQueuedBytes      int           `env:"SESSION_MAX_QUEUED_BYTES" default:"1048576" min:"65536" max:"67108864" doc:"Bytes queued for a slow browser before it is disconnected."`
	FramesPerSecond     int           `env:"SESSION_MAX_FRAMES_PER_SECOND" default:"60" min:"1" max:"10000" doc:"Frames that a browser may send per second, without audio. Ten times as many with audio and fragments."`
	HandshakesPerMinute int           `env:"SESSION_MAX_HANDSHAKES_PER_MINUTE" default:"30" min:"1" max:"10000" doc:"WebSocket handshakes of one session per minute. More get 429."`
	MaxConnections      int           `env:"SESSION_MAX_CONNECTIONS" default:"20000" min:"1" max:"1000000" doc:"Open WebSockets of this instance. More get 503."`
	AudioBytesPerSecond int           `env:"SESSION_MAX_AUDIO_BYTES_PER_SECOND" default:"65536" min:"1024" max:"16777216" doc:"Bytes of audio that a browser may send per second. More is dropped."`
	HistoryMessages     int           `env:"SESSION_HISTORY_MESSAGES" default:"300" min:"1" max:"10000" doc:"Messages kept for replay after a reconnect."`
	HistoryTime         time.Duration `env:"SESSION_HISTORY_TIME" default:"10m" min:"1s" max:"24h" doc:"How long messages are kept for replay."`
	ReconnectJitter     time.Duration `env:"SESSION_RECONNECT_JITTER" default:"5s" min:"0s" max:"1m" doc:"A stopping instance closes its WebSockets spread over this time."`

	_                struct{} `section:"Commands"`
	CommandsDisabled []string `env:"COMMANDS_DISABLED" kind:"list:command types, such as transfer,send_dtmf" doc:"Command types that no callback may use."`
	TransferTargets  []string `env:"TRANSFER_ALLOWED_TARGETS" kind:"list:target patterns, such as tel:+49*,sip:*@pbx.example" doc:"Transfer targets that this platform allows. Empty: the gateway profile decides."`
	TransferHeaders  []string `env:"TRANSFER_ALLOWED_HEADERS" kind:"list:names, such as Diversion,maddr" doc:"SIP headers and URI parameters that a gateway profile may allow, besides the usual ones in docs/commands.md."`

	_                  struct{}      `section:"Stores"`
	DataDir            string        `env:"DATA_DIR" default:"./data" doc:"Directory of the embedded stores."`
	DatabaseURL        redact.Secret `env:"DATABASE_URL" kind:"url:postgres,postgresql" doc:"PostgreSQL. Empty: SQLite in DATA_DIR."`
	DatabaseSSLMode    string        `env:"DATABASE_SSL_MODE" default:"disable" oneof:"disable,require,verify-ca,verify-full" doc:"TLS to PostgreSQL. Must not contradict sslmode in DATABASE_URL, which applies if this is unset. The URL's sslrootcert names the root certificate."`
	RedisURL           redact.Secret `env:"REDIS_URL" kind:"url:redis,rediss" doc:"Redis 7 or Valkey; several hosts for a cluster. Empty: the embedded store in DATA_DIR."`
	RedisTLSEnabled    bool          `env:"REDIS_TLS_ENABLED" default:"false" doc:"Uses TLS even if the URL starts with redis://."`
	RedisTLSCAFile     string        `env:"REDIS_TLS_CA_FILE" doc:"PEM file of the CA of the key-value store's certificate. Empty: the system's."`
	EmbeddedKVMaxBytes int64         `env:"EMBEDDED_KV_MAX_BYTES" default:"268435456" min:"1048576" max:"1099511627776" doc:"Maximum content of the embedded store. When it is full, frames get BACKPRESSURE, callbacks and new sessions 503. The process needs up to four times this memory."`
	KVMinReplicas      int           `env:"KV_MIN_REPLICAS" default:"0" min:"0" max:"16" doc:"Redis replicas that must have a frame, callback or runtime request before it is acknowledged. If they don't confirm in time, WebSockets close with 4005 and requests get 503. 0: a failover can lose acknowledged data."`

	_                   struct{}      `section:"Media cache client"`
	MediaCacheURL       string        `env:"TTS_MEDIA_CACHE_BASE_URL" kind:"url:http,https" serve:"url:https" doc:"Base URL of the media service. telapi serve accepts only https://."`
	MediaCacheToken     redact.Secret `env:"TTS_MEDIA_CACHE_UPLOAD_TOKEN" doc:"Bearer token for uploads and deletes."`
	MediaCacheCABundle  redact.Secret `env:"TTS_MEDIA_CACHE_CA_BUNDLE" kind:"pem" doc:"CA of the media service's certificate. Empty: the system's."`
	MediaCacheRetention time.Duration `env:"TTS_MEDIA_CACHE_RETENTION" default:"2160h" min:"0s" max:"87600h" doc:"Speech without ttl is deleted when it was not requested for this time (2160h are 90 days). 0: never."`

	_                   struct{}      `section:"Media service (telapi media)"`
	MediaPort           int           `env:"MEDIA_PORT" default:"3002" min:"0" max:"65535" doc:"Port of the media service. 0: a free port. telapi dev uses one if the default is in use."`
	MediaHost           string        `env:"MEDIA_HOST" dev:"127.0.0.1" doc:"Address on which the media service listens. Empty: all, or 127.0.0.1 without MEDIA_UPLOAD_TOKEN. In telapi dev: 127.0.0.1."`
	MediaRoot           string        `env:"MEDIA_ROOT" doc:"Directory of the audio files. Empty: media in DATA_DIR."`
	MediaToken          redact.Secret `env:"MEDIA_UPLOAD_TOKEN" doc:"Bearer token for listing, uploads and deletes. Empty: no authentication; then MEDIA_HOST and the Host of requests must be loopback."`
	MediaTokenPrevious  redact.Secret `env:"MEDIA_UPLOAD_TOKEN_PREVIOUS" doc:"A second accepted token, for rotating MEDIA_UPLOAD_TOKEN."`
	MediaTLSCertFile    string        `env:"MEDIA_TLS_CERT_FILE" doc:"PEM certificate chain. If set, the service serves HTTPS only. Reloaded when it changes."`
	MediaTLSKeyFile     string        `env:"MEDIA_TLS_KEY_FILE" doc:"PEM private key of MEDIA_TLS_CERT_FILE."`
	MediaMaxObjectBytes int           `env:"MEDIA_MAX_OBJECT_BYTES" default:"16777216" min:"1" max:"1073741824" doc:"Maximum size of a file."`
	MediaMaxBytes       int64         `env:"MEDIA_MAX_BYTES" default:"0" min:"0" max:"1125899906842624" doc:"Maximum size of all files; then the least recently used are deleted. 0: unlimited."`
	MediaMemoryBytes    int64         `env:"MEDIA_MEMORY_BYTES" default:"67108864" min:"0" max:"1099511627776" doc:"In-memory cache for frequently requested files. 0: none."`
	MediaSync           bool          `env:"MEDIA_SYNC" default:"true" doc:"Responds to uploads and deletes after they are on disk. false: earlier; a power failure may lose the newest files."`

	_               struct{}      `section:"Speech"`
	SpeechProviders []string      `env:"SPEECH_PROVIDERS" dev:"tone" oneof:"openai,espeak,tone" doc:"Speech providers in order of preference. Empty: speech requests get 503. In telapi dev: espeak if espeak-ng is installed, then tone."`
	SpeechTimeout   time.Duration `env:"SPEECH_CONNECTION_TIMEOUT" default:"5s" min:"10ms" max:"10m" doc:"Maximum time until a provider's first byte, and between bytes."`
	SpeechRetries   int           `env:"SPEECH_RETRIES" default:"1" min:"0" max:"10" doc:"Retries of a failed provider before the next one is used."`
	SpeechURL       string        `env:"SPEECH_OPENAI_URL" kind:"url:http,https" doc:"Base URL of the openai provider, without /v1/audio/speech. Honors HTTPS_PROXY and HTTP_PROXY."`
	SpeechKey       redact.Secret `env:"SPEECH_OPENAI_KEY" doc:"API key of the openai provider."`
	SpeechModel     string        `env:"SPEECH_OPENAI_MODEL" default:"tts-1" doc:"Default model."`
	SpeechVoice     string        `env:"SPEECH_OPENAI_VOICE" default:"alloy" doc:"Default voice."`
	EspeakVoice     string        `env:"SPEECH_ESPEAK_VOICE" default:"en" doc:"Default voice of espeak-ng, and the one for unknown voices."`

	_            struct{}      `section:"Demo (telapi dev)"`
	DemoSTTURL   string        `env:"DEMO_STT_URL" kind:"url:http,https" doc:"Server with OpenAI's /v1/audio/transcriptions that recognizes the caller's speech. Empty: the demo repeats what it hears."`
	DemoSTTModel string        `env:"DEMO_STT_MODEL" default:"whisper-1" doc:"Its model."`
	DemoSTTKey   redact.Secret `env:"DEMO_STT_KEY" doc:"Its API key."`
	DemoLLMURL   string        `env:"DEMO_LLM_URL" kind:"url:http,https" doc:"Server with OpenAI's /v1/chat/completions that answers for the demo bot. Empty: a fixed set of answers."`
	DemoLLMModel string        `env:"DEMO_LLM_MODEL" default:"gpt-4o-mini" doc:"Its model."`
	DemoLLMKey   redact.Secret `env:"DEMO_LLM_KEY" doc:"Its API key."`

	_                    struct{} `section:"Telemetry and privacy"`
	LogLevel             string   `env:"LOG_LEVEL" default:"info" oneof:"debug,info,warn,error" doc:"Log level."`
	LogFormat            string   `env:"LOG_FORMAT" default:"auto" oneof:"auto,text,json" doc:"auto is text on a terminal, JSON otherwise."`
	NoColor              string   `env:"NO_COLOR" doc:"Any text removes colours, which output has on a terminal."`
	ForceColor           string   `env:"FORCE_COLOR" doc:"Any text but 0 adds colours, even without a terminal or with NO_COLOR."`
	OTelEnabled          bool     `env:"OTEL_ENABLED" default:"true" doc:"Exports traces, metrics and logs over OTLP/HTTP."`
	OTLPEndpoint         string   `env:"OTEL_EXPORTER_OTLP_ENDPOINT" kind:"url:http,https" doc:"Collector; /v1/traces, /v1/metrics and /v1/logs are appended. Empty: only signals with their own URL are exported."`
	OTLPTraces           string   `env:"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" kind:"url:http,https" doc:"Complete URL for traces, such as http://collector:4318/v1/traces."`
	OTLPMetrics          string   `env:"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" kind:"url:http,https" doc:"Complete URL for metrics."`
	OTLPLogs             string   `env:"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT" kind:"url:http,https" doc:"Complete URL for logs."`
	EnablePIILogging     bool     `env:"ENABLE_PII_LOGGING" default:"false" kind:"true" doc:"Unless this is exactly true, texts and numbers in browser actions are redacted before they are stored."`
	MSISDNUnmaskedDigits int      `env:"MSISDN_UNMASKED_DIGITS" default:"4" min:"0" max:"15" doc:"Trailing digits that stay visible when phone numbers are masked in logs and spans."`

	sources map[string]Source
}

// deprecated maps variables without effect to the text of their warning.
var deprecated = map[string]string{
	"RATE_LIMIT_MAX":       limitsMoved,
	"RATE_LIMIT_WINDOW_MS": limitsMoved,
}

const limitsMoved = "has NO EFFECT: remove it and set rate limits with `telapi limits set` or in the web console"

// Mode selects which settings are required and which defaults apply.
type Mode int

// The modes: Serve requires everything a production server needs, Dev generates
// missing values, and Tool, for administration commands, requires nothing.
const (
	Serve Mode = iota
	Dev
	Tool
)

// Source is the origin of a value.
type Source string

// The sources of values. The source of a secret from a file is the variable that names
// the file.
const (
	Default     Source = "default"
	Environment Source = "environment"
	FromURL     Source = "DATABASE_URL" // the parameter sslmode of the URL
	Generated   Source = "generated"    // by telapi dev
)

// IsSet reports whether the environment sets the variable, or names a file with its value.
func (c Config) IsSet(name string) bool {
	source := c.sources[name]
	return source == Environment || source == Source(name+fileSuffix)
}

// Color reports whether output has colours.
func (c Config) Color(isTerminal bool) bool {
	forced := c.ForceColor != "" && c.ForceColor != "0"
	return forced || isTerminal && c.NoColor == ""
}

// Color reports whether output has colours in an environment, also an invalid one.
func Color(environ []string, isTerminal bool) bool {
	var c Config
	for _, entry := range environ {
		switch name, value, _ := strings.Cut(entry, "="); name {
		case "NO_COLOR":
			c.NoColor = value
		case "FORCE_COLOR":
			c.ForceColor = value
		}
	}
	return c.Color(isTerminal)
}

// APIScheme returns the URL scheme of the API server.
func (c Config) APIScheme() string {
	if c.APITLSEnabled {
		return "https"
	}
	return "http"
}

// LocalURL returns the base URL of the API server for clients on the same machine.
func (c Config) LocalURL(port int) string {
	host := c.Host
	if slices.Contains([]string{"", "0.0.0.0", "::", "127.0.0.1", "::1"}, host) {
		host = "localhost"
	}
	return c.APIScheme() + "://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// setting is one field of Config with its tags.
type setting struct {
	reflect.StructField
	name    string // environment variable
	section string
	oneof   []string // allowed values; nil: any
	secret  bool
}

// settings returns all settings in the order of Config.
func settings() (all []setting) {
	section := ""
	for f := range reflect.TypeFor[Config]().Fields() {
		section = cmp.Or(f.Tag.Get("section"), section)
		if name := f.Tag.Get("env"); name != "" {
			s := setting{StructField: f, name: name, section: section, secret: f.Type == reflect.TypeFor[redact.Secret]()}
			if list := f.Tag.Get("oneof"); list != "" {
				s.oneof = strings.Split(list, ",")
			}
			all = append(all, s)
		}
	}
	return all
}

// fileSuffix ends the name of a variable that names a file with a secret: JWT_SECRET_FILE
// for JWT_SECRET.
const fileSuffix = "_FILE"

// fileName returns the variable that names a file with the value of a secret.
func (s setting) fileName() string { return s.name + fileSuffix }

// kind splits the kind tag, such as url:https, into the kind of value and its detail.
func (s setting) kind(mode Mode) (kind, detail string) {
	tag := s.Tag.Get("kind")
	if mode == Serve {
		tag = cmp.Or(s.Tag.Get("serve"), tag)
	}
	kind, detail, _ = strings.Cut(tag, ":")
	return kind, detail
}

// valid describes the valid values of a setting.
func (s setting) valid(mode Mode) string {
	switch kind, detail := s.kind(mode); {
	case s.oneof != nil && s.Type == reflect.TypeFor[[]string]():
		return "a comma-separated list without duplicates of " + strings.Join(s.oneof, ", ")
	case s.oneof != nil:
		return strings.Join(s.oneof[:len(s.oneof)-1], ", ") + " or " + s.oneof[len(s.oneof)-1]
	case kind == "url":
		schemes := strings.ReplaceAll(detail, ",", ":// or ") + "://"
		if s.secret {
			return "a URL with " + schemes + " and a host, with special characters in user and password percent-encoded"
		}
		return "a URL with " + schemes + " and a host, without user, query and fragment"
	case kind == "list":
		return "comma-separated " + detail
	case kind == "origins":
		return "comma-separated origins, each a scheme and a host, such as https://console.example or http://localhost:8080"
	case kind == "pem":
		return "PEM certificates, plain or in base64"
	case kind == "base64pem":
		return "PEM in base64"
	case kind == "ice":
		return `comma-separated stun:, stuns:, turn: and turns: URLs, or a JSON list such as [{"urls":["turn:turn.example"],"username":"u","credential":"c"}]`
	case s.secret && s.Tag.Get("min") != "":
		return "at least " + s.Tag.Get("min") + " bytes, such as the output of openssl rand -base64 32"
	}
	switch s.Type {
	case reflect.TypeFor[bool]():
		return "true or false"
	case reflect.TypeFor[int](), reflect.TypeFor[int64]():
		return fmt.Sprintf("an integer from %s to %s", s.Tag.Get("min"), s.Tag.Get("max"))
	case reflect.TypeFor[time.Duration]():
		return fmt.Sprintf("a duration from %s to %s, such as %s", s.Tag.Get("min"), s.Tag.Get("max"), s.Tag.Get("default"))
	case reflect.TypeFor[[]netip.Prefix]():
		return "comma-separated IP addresses or CIDR ranges, such as 10.0.0.0/8"
	}
	return "any text"
}

// masked returns a value for output: quoted, or with its secrets replaced.
func (s setting) masked(value string) string {
	const maxLength = 200
	kind, _ := s.kind(Dev)
	switch {
	case value == "":
		return ""
	case kind == "url":
		masked := maskURL(value)
		isURL := masked != redact.Placeholder
		mayHavePassword := s.secret || strings.ContainsAny(value, "@?#")
		if isURL || mayHavePassword {
			return masked
		}
	case s.secret:
		return redact.Placeholder
	case len(value) > maxLength:
		value = value[:maxLength] + "…"
	}
	return fmt.Sprintf("%q", redact.Text(value))
}

// Setting is the effective value of one variable, with secrets masked.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source Source `json:"source"`
	Doc    string `json:"doc"`
}

// Effective returns the value and source of every setting.
func (c Config) Effective() (list []Setting) {
	fields := reflect.ValueOf(c)
	for _, s := range settings() {
		var value string
		switch v := fields.FieldByIndex(s.Index).Interface().(type) {
		case redact.Secret:
			value = s.masked(v.Reveal())
		case []string:
			value = strings.Join(v, ",")
		case []netip.Prefix:
			value = strings.ReplaceAll(strings.Trim(fmt.Sprint(v), "[]"), " ", ",") // [a b] as a,b
		default:
			value = fmt.Sprint(v)
		}
		list = append(list, Setting{s.name, value, cmp.Or(c.sources[s.name], Default), s.Tag.Get("doc")})
	}
	return list
}
