// Package config owns the service's whole configuration: one struct in which
// every field names its environment variable, default, allowed values and
// meaning. Loading, error texts and docs/configuration.md come from these tags.
package config

import (
	"net/netip"
	"time"

	"telapi/internal/redact"
)

// Config is the effective configuration. Nothing else in the service reads the
// environment.
//
// Tags: env is the name; default, min, max and oneof mean what they say (min of
// a secret counts bytes); dev is the default of `telapi dev` where it differs;
// kind narrows a text, and serve narrows it further for `telapi serve`; required
// names the commands that insist on a value.
type Config struct {
	_                struct{} `section:"What is registered"`
	FeatureAPIAccess bool     `env:"FEATURE_API_ACCESS" default:"true" doc:"When false, only health, metrics and webhooks are registered."`
	FeatureWebRTC    bool     `env:"FEATURE_WEBRTC" default:"true" doc:"When false, WebRTC session tokens are refused with 503 and /ws/session serves the other modes only."`
	Playground       bool     `env:"PLAYGROUND_ENABLED" default:"false" dev:"true" doc:"Serve /playground, a page to try the service with, and /docs, its reference. telapi dev serves both unless this is set to false."`

	_               struct{}       `section:"Listening"`
	Port            int            `env:"TELAPI_PORT" default:"3001" min:"0" max:"65535" doc:"Port of the API server. 0 picks a free one."`
	PublicURL       string         `env:"PUBLIC_URL" kind:"url:http,https" doc:"Address under which clients reach the service; used in the URLs it hands out. Empty: derived from the request."`
	TrustedProxies  []netip.Prefix `env:"TRUSTED_PROXIES" doc:"Comma-separated addresses or CIDR ranges whose X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host are believed. Empty: nobody's."`
	ShutdownTimeout time.Duration  `env:"SHUTDOWN_TIMEOUT" default:"30s" min:"1s" max:"10m" doc:"How long a drain may take before what is left is cut off. Whoever ends the process should wait ten seconds longer: last writes to a store and a collector that hang are given up after eight."`
	DrainDelay      time.Duration  `env:"DRAIN_DELAY" default:"5s" dev:"0s" min:"0s" max:"5m" doc:"How long a draining instance goes on serving with /health at 503, so that a load balancer notices before connections are refused; at most half of SHUTDOWN_TIMEOUT. telapi dev does not wait unless this is set."`
	APITLSEnabled   bool           `env:"API_TLS_ENABLED" default:"false" doc:"Serve TLS on TELAPI_PORT with the EDGE_TLS_* material: TLS 1.3, and 1.2 with AEAD suites only."`
	EdgeTLSChain    redact.Secret  `env:"EDGE_TLS_FULLCHAIN_B64" kind:"base64pem" doc:"Certificate chain of the TLS listener, the server's own certificate first."`
	EdgeTLSKey      redact.Secret  `env:"EDGE_TLS_PRIVKEY_B64" kind:"base64pem" doc:"Private key of the TLS listener."`

	_            struct{}      `section:"Trust"`
	JWTSecret    redact.Secret `env:"JWT_SECRET" min:"32" required:"serve" doc:"HS256 key of console JWTs and session tokens. It must equal the web console's signing secret, or every JWT is answered 401. telapi dev makes one up when it is unset."`
	JWTPrevious  redact.Secret `env:"JWT_SECRET_PREVIOUS" min:"32" doc:"A second secret under which JWTs are accepted and none is signed: the way to change JWT_SECRET without an outage."`
	MetricsToken redact.Secret `env:"METRICS_TOKEN" doc:"When set, /metrics asks for it as a bearer token."`

	_                  struct{}      `section:"Sessions"`
	ICEServers         redact.Secret `env:"WEBRTC_ICE_SERVERS" kind:"ice" doc:"STUN and TURN servers that WebRTC sessions are given: URLs, or the list of an RTCConfiguration with credentials of its own. TURN servers without a credential get one per session from TURN_SHARED_SECRET."`
	TURNSecret         redact.Secret `env:"TURN_SHARED_SECRET" doc:"Secret shared with the TURN servers (coturn: static-auth-secret), from which every session's credentials are made."`
	SessionIdleTimeout time.Duration `env:"SESSION_IDLE_TIMEOUT" default:"15m" min:"1s" max:"24h" doc:"A session that no browser is connected to for this long expires."`
	SessionRetention   time.Duration `env:"SESSION_RETENTION" default:"720h" min:"0s" max:"87600h" doc:"Sessions that ended longer ago, and what their browsers did, are deleted from the database; never within a day of their end. 0 keeps them for ever."`
	PingInterval       time.Duration `env:"SESSION_PING_INTERVAL" default:"25s" min:"1s" max:"5m" doc:"How often a session's socket is pinged. A connection owns its session for two of these without a sign of life."`
	MaxFrameBytes      int           `env:"SESSION_MAX_FRAME_BYTES" default:"65536" min:"1024" max:"1048576" doc:"The largest frame a browser may send."`
	MaxQueuedBytes     int           `env:"SESSION_MAX_QUEUED_BYTES" default:"1048576" min:"65536" max:"67108864" doc:"What is queued for a browser that reads slowly before it is disconnected."`
	FramesPerSecond    int           `env:"SESSION_MAX_FRAMES_PER_SECOND" default:"60" min:"1" max:"10000" doc:"Frames a browser may send per second, audio not counted."`
	HistoryMessages    int           `env:"SESSION_HISTORY_MESSAGES" default:"300" min:"1" max:"10000" doc:"Messages that are kept for a browser that reconnects."`
	HistoryTime        time.Duration `env:"SESSION_HISTORY_TIME" default:"10m" min:"1s" max:"24h" doc:"How long they are kept."`
	ReconnectJitter    time.Duration `env:"SESSION_RECONNECT_JITTER" default:"5s" min:"0s" max:"1m" doc:"The window over which sockets are closed when an instance drains, and come back to the others."`

	_                struct{} `section:"Commands"`
	CommandsDisabled []string `env:"COMMANDS_DISABLED" kind:"list:command types, such as transfer,send_dtmf" doc:"Command types that no callback may use, whatever a flow permits."`
	TransferTargets  []string `env:"TRANSFER_ALLOWED_TARGETS" kind:"list:target patterns, such as tel:+49*,sip:*@pbx.example" doc:"The only targets that transfers may go to; flows can permit fewer, never more. Empty: what the flow permits."`

	_               struct{}      `section:"Stores"`
	DataDir         string        `env:"DATA_DIR" default:"./data" doc:"Folder of the embedded stores."`
	DatabaseURL     redact.Secret `env:"DATABASE_URL" kind:"url:postgres,postgresql" doc:"PostgreSQL URL. Empty: SQLite under DATA_DIR."`
	DatabaseSSLMode string        `env:"DATABASE_SSL_MODE" default:"disable" oneof:"disable,require,verify-ca,verify-full" doc:"TLS to PostgreSQL. When set, it replaces sslmode in DATABASE_URL; when unset, sslmode of the URL holds. The root certificate is the URL's sslrootcert."`
	RedisURL        redact.Secret `env:"REDIS_URL" kind:"url:redis,rediss" doc:"Redis 7 or Valkey URL, several comma-separated hosts for a cluster. Empty: the embedded engine."`
	RedisTLSEnabled bool          `env:"REDIS_TLS_ENABLED" default:"false" doc:"TLS to the key-value store, whatever the URL's scheme."`
	RedisTLSCAFile  string        `env:"REDIS_TLS_CA_FILE" doc:"PEM file of the CA that signed the key-value store's certificate. Empty: the system's roots."`

	_                  struct{}      `section:"Media cache"`
	MediaCacheURL      string        `env:"TTS_MEDIA_CACHE_BASE_URL" kind:"url:http,https" serve:"url:https" doc:"HTTPS base URL of the media service. Plain http passes in telapi dev only."`
	MediaCacheToken    redact.Secret `env:"TTS_MEDIA_CACHE_UPLOAD_TOKEN" doc:"Bearer token for writes to and deletes from the media service."`
	MediaCacheCABundle redact.Secret `env:"TTS_MEDIA_CACHE_CA_BUNDLE" kind:"pem" doc:"CA bundle that the media service's certificate is checked against. Empty: the system's roots."`

	_                   struct{}      `section:"Media service (telapi media)"`
	MediaPort           int           `env:"MEDIA_PORT" default:"3002" min:"0" max:"65535" doc:"Port of the media service. 0 picks a free one. telapi dev also picks one when this is unset and the default is in use."`
	MediaHost           string        `env:"MEDIA_HOST" doc:"Address the media service listens on, such as 127.0.0.1. Empty: all of the machine's; in telapi dev the loopback address."`
	MediaRoot           string        `env:"MEDIA_ROOT" doc:"Folder of the objects. Empty: media under DATA_DIR."`
	MediaToken          redact.Secret `env:"MEDIA_UPLOAD_TOKEN" doc:"Bearer token that writes and deletes must bring. Empty: anybody may, and the log warns of it unless the service listens on a loopback address."`
	MediaTokenPrevious  redact.Secret `env:"MEDIA_UPLOAD_TOKEN_PREVIOUS" doc:"A second token that is accepted too, while clients change from one to the other."`
	MediaTLSCertFile    string        `env:"MEDIA_TLS_CERT_FILE" doc:"PEM file of the media service's certificate chain; with it the service speaks HTTPS only. Read again when it changes."`
	MediaTLSKeyFile     string        `env:"MEDIA_TLS_KEY_FILE" doc:"PEM file of that certificate's key."`
	MediaMaxObjectBytes int           `env:"MEDIA_MAX_OBJECT_BYTES" default:"16777216" min:"1" max:"1073741824" doc:"The largest object that is stored."`
	MediaMaxBytes       int           `env:"MEDIA_MAX_BYTES" default:"0" min:"0" max:"1125899906842624" doc:"Bytes of all objects together; over it the least recently used go. 0: no cap."`
	MediaMemoryBytes    int           `env:"MEDIA_MEMORY_BYTES" default:"67108864" min:"0" max:"1099511627776" doc:"Memory for the objects that are asked for most; they are answered from there. 0: none."`
	MediaSync           bool          `env:"MEDIA_SYNC" default:"true" doc:"Uploads and deletes are answered once they are on disk for good. false: as soon as the system has them; after a power failure the last ones may be missing or empty, which readers that check what they get, as the API server does, can live with."`

	_               struct{}      `section:"Speech"`
	SpeechProviders []string      `env:"SPEECH_PROVIDERS" dev:"tone" oneof:"openai,espeak,tone" doc:"Who makes speech, in order of preference: a service that speaks OpenAI's interface, the program espeak-ng, or a built-in one that plays tones. One that fails is followed by the next. Empty: requests for speech are answered 503; telapi dev has espeak speak where espeak-ng is installed, and plays tones otherwise."`
	SpeechTimeout   time.Duration `env:"SPEECH_CONNECTION_TIMEOUT" default:"5s" min:"10ms" max:"10m" doc:"How long a speech provider may be silent, before its first byte or in between."`
	SpeechRetries   int           `env:"SPEECH_RETRIES" default:"1" min:"0" max:"10" doc:"How often a speech provider that failed is tried again before the next one is."`
	SpeechURL       string        `env:"SPEECH_OPENAI_URL" kind:"url:http,https" doc:"Base URL of the service behind openai, before /v1/audio/speech. It is reached through HTTPS_PROXY or HTTP_PROXY where that is set."`
	SpeechKey       redact.Secret `env:"SPEECH_OPENAI_KEY" doc:"Its API key, sent as a bearer token."`
	SpeechModel     string        `env:"SPEECH_OPENAI_MODEL" default:"tts-1" doc:"The model it is asked for where a request names none."`
	SpeechVoice     string        `env:"SPEECH_OPENAI_VOICE" default:"alloy" doc:"The voice it is asked for where a request names none."`
	EspeakVoice     string        `env:"SPEECH_ESPEAK_VOICE" default:"en" doc:"The voice of espeak where a request names none that it has; espeak-ng --voices lists them."`

	_                    struct{} `section:"Telemetry and privacy"`
	LogLevel             string   `env:"LOG_LEVEL" default:"info" oneof:"debug,info,warn,error" doc:"Application log level."`
	LogFormat            string   `env:"LOG_FORMAT" default:"auto" oneof:"auto,text,json" doc:"auto is text in a terminal and JSON elsewhere."`
	OTelEnabled          bool     `env:"OTEL_ENABLED" default:"true" doc:"Export traces, metrics and logs over OTLP/HTTP."`
	OTLPEndpoint         string   `env:"OTEL_EXPORTER_OTLP_ENDPOINT" kind:"url:http,https" doc:"OTLP/HTTP collector. Empty: nothing is exported, and the log says so once."`
	EnablePIILogging     bool     `env:"ENABLE_PII_LOGGING" default:"false" doc:"When not true, transcript text of browser actions is redacted before it is persisted."`
	MSISDNUnmaskedDigits int      `env:"MSISDN_UNMASKED_DIGITS" default:"4" min:"0" max:"15" doc:"Trailing digits kept when phone numbers are masked in exported logs."`

	sources map[string]Source
}

// deprecated names had a meaning once. Setting one is no error, but loud.
var deprecated = map[string]string{
	"RATE_LIMIT_MAX":       limitsMoved,
	"RATE_LIMIT_WINDOW_MS": limitsMoved,
}

const limitsMoved = "has NO EFFECT and must be removed: rate limits are set with `telapi limits set` or in the web console"

// Mode is what the configuration is loaded for.
type Mode int

// Serve insists on what a production server needs, Dev fills gaps with made-up
// values, and Tool, for administration commands, asks for nothing.
const (
	Serve Mode = iota
	Dev
	Tool
)

// Source is where a value came from.
type Source string

// Sources of values.
const (
	Default     Source = "default"
	Environment Source = "environment"
	FromURL     Source = "DATABASE_URL" // sslmode of the URL
	Generated   Source = "generated"    // made up by dev
)

// IsSet tells whether the environment sets the variable of that name.
func (c Config) IsSet(name string) bool { return c.sources[name] == Environment }
