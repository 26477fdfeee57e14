package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"telapi/internal/redact"
	"telapi/test/testkit"
)

const validSecret = "0123456789abcdef0123456789abcdef"

func load(t *testing.T, mode Mode, environ ...string) (Config, []Warning) {
	t.Helper()
	c, warnings, err := Load(environ, mode)
	testkit.Must(t, err)
	return c, warnings
}

// Other systems rely on these names and defaults.
func TestDefaultsMatchInterfaceDocument(t *testing.T) {
	c, _ := load(t, Tool)
	effective := map[string]Setting{}
	for _, s := range c.Effective() {
		effective[s.Name] = s
	}
	for name, want := range map[string]string{
		"FEATURE_WEBRTC":               "true",
		"FEATURE_API_ACCESS":           "true",
		"TELAPI_PORT":                  "3001",
		"TELAPI_HOST":                  "",
		"LOG_LEVEL":                    "info",
		"JWT_SECRET":                   "",
		"JWT_MAX_AGE":                  "24h0m0s",
		"DATABASE_SSL_MODE":            "disable",
		"REDIS_TLS_ENABLED":            "false",
		"API_TLS_ENABLED":              "false",
		"EDGE_TLS_FULLCHAIN_B64":       "",
		"EDGE_TLS_PRIVKEY_B64":         "",
		"TTS_MEDIA_CACHE_BASE_URL":     "",
		"TTS_MEDIA_CACHE_UPLOAD_TOKEN": "",
		"TTS_MEDIA_CACHE_CA_BUNDLE":    "",
		"OTEL_ENABLED":                 "true",
		"ENABLE_PII_LOGGING":           "false",
		"MSISDN_UNMASKED_DIGITS":       "4",
		"DATABASE_URL":                 "",
		"REDIS_URL":                    "",
		"DATA_DIR":                     "./data",
		"PUBLIC_URL":                   "",
		"TRUSTED_PROXIES":              "",
		"CONSOLE_ORIGINS":              "",
		"AUDIT_RETENTION":              "9600h0m0s",
		"COMMANDS_DISABLED":            "",
		"TRANSFER_ALLOWED_TARGETS":     "",
		"TRANSFER_ALLOWED_HEADERS":     "",
		"SHUTDOWN_TIMEOUT":             "30s",
		"METRICS_TOKEN":                "",
	} {
		t.Run(name, func(t *testing.T) {
			s, ok := effective[name]
			if !ok || s.Value != want || s.Source != Default || s.Doc == "" {
				t.Errorf("setting %+v, want the default %q and a description", s, want)
			}
		})
	}
}

func TestLoadParsesValues(t *testing.T) {
	c, warnings := load(t, Serve, "JWT_SECRET="+validSecret, "TELAPI_PORT= 0 ", "FEATURE_WEBRTC=FALSE", "OTEL_ENABLED=0", "ENABLE_PII_LOGGING= true ",
		"SHUTDOWN_TIMEOUT=1m30s", "TRUSTED_PROXIES=10.1.2.3/8, 192.0.2.7 ,::1,::ffff:198.51.100.0/120", "LOG_LEVEL=DEBUG",
		"CONSOLE_ORIGINS=https://Console.example:443/, http://localhost:8080", "PUBLIC_URL=https://api.example/base/", "DATA_DIR=", "LOG_FORMAT=   ", "PATH=/bin", "TELAPI_PORT=4000", "NOVALUE")
	if len(warnings) > 0 {
		t.Errorf("warnings %v, want none", warnings)
	}
	if c.Port != 4000 || c.FeatureWebRTC || c.OTelEnabled || !c.EnablePIILogging || c.ShutdownTimeout != 90*time.Second ||
		c.LogLevel != "debug" || c.PublicURL != "https://api.example/base" || c.DataDir != "./data" || c.LogFormat != "auto" {
		t.Errorf("configuration %+v has a wrong value", c)
	}
	testkit.Equal(t, "TrustedProxies", fmt.Sprint(c.TrustedProxies), "[10.0.0.0/8 192.0.2.7/32 ::1/128 198.51.100.0/24]")
	testkit.Equal(t, "ConsoleOrigins", fmt.Sprint(c.ConsoleOrigins), "[https://console.example http://localhost:8080]")
	if !c.IsSet("TELAPI_PORT") || c.IsSet("DATA_DIR") || c.IsSet("LOG_FORMAT") || c.IsSet("nothing") {
		t.Error("IsSet returns a wrong value")
	}
}

func TestLoadReportsAllProblems(t *testing.T) {
	invalid := map[string]string{ // entry and the expected part of the report
		"TELAPI_PORT=65536":                                          `TELAPI_PORT="65536": use an integer from 0 to 65535`,
		"MSISDN_UNMASKED_DIGITS=-1":                                  `MSISDN_UNMASKED_DIGITS="-1": use an integer from 0 to 15`,
		"FEATURE_WEBRTC=yes":                                         `FEATURE_WEBRTC="yes": use true or false`,
		"LOG_LEVEL=loud":                                             `LOG_LEVEL="loud": use debug, info, warn or error`,
		"DATABASE_SSL_MODE=prefer":                                   `DATABASE_SSL_MODE="prefer": use disable, require, verify-ca or verify-full`,
		"SHUTDOWN_TIMEOUT=30":                                        `SHUTDOWN_TIMEOUT="30": use a duration from 1s to 10m, such as 30s`,
		"COMMANDS_DISABLED=hangup,,transfer":                         `COMMANDS_DISABLED="hangup,,transfer": use comma-separated command types`,
		"CONSOLE_ORIGINS=https://a.example,*":                        `CONSOLE_ORIGINS="https://a.example,*": use comma-separated origins, each a scheme and a host`,
		"SPEECH_PROVIDERS=tone,tone":                                 `SPEECH_PROVIDERS="tone,tone": use a comma-separated list without duplicates of openai, espeak, tone`,
		"TRUSTED_PROXIES=10.0.0.0/8,proxy.example":                   `TRUSTED_PROXIES="10.0.0.0/8,proxy.example": use comma-separated IP addresses or CIDR ranges`,
		"PUBLIC_URL=https://u:hunter2@api.example":                   `PUBLIC_URL=https://u:[redacted]@api.example: contains a user or password; use a URL with http:// or https://`,
		"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318":                 `OTEL_EXPORTER_OTLP_ENDPOINT="collector:4318": not a URL; use`,
		"JWT_SECRET=hunter2":                                         `JWT_SECRET=[redacted]: has only 7 bytes; use at least 32 bytes`,
		"DATABASE_URL=mysql://app:hunter2@db/x":                      `DATABASE_URL=mysql://app:[redacted]@db/x: unsupported scheme; use a URL with postgres:// or postgresql:// and a host`,
		"REDIS_URL=redis://app:hunter2@kv:6379/one?password=hunter2": `REDIS_URL=redis://app:[redacted]@kv:6379/one?[redacted]: the path is not a database number; use`,
		"TTS_MEDIA_CACHE_BASE_URL=http://media.example":              `TTS_MEDIA_CACHE_BASE_URL=http://media.example: unsupported scheme; use a URL with https:// and a host`,
		"TTS_MEDIA_CACHE_CA_BUNDLE=hunter2":                          `TTS_MEDIA_CACHE_CA_BUNDLE=[redacted]: missing or damaged certificate`,
		"API_TLS_ENABLED=true":                                       `EDGE_TLS_FULLCHAIN_B64: not set, but required by API_TLS_ENABLED=true`,
		"TELAPI_PROT=1":                                              `TELAPI_PROT: unknown setting; did you mean TELAPI_PORT?`,
		"TELAPI_JWT_SECRET=hunter2":                                  `TELAPI_JWT_SECRET: unknown setting; did you mean JWT_SECRET?`,
		"TELAPI_METRICS_TOKEN_FILE=x":                                `TELAPI_METRICS_TOKEN_FILE: unknown setting; did you mean METRICS_TOKEN_FILE?`,
		"TELAPI_SERVICE_HOST=10.0.0.1":                               `with this prefix; Kubernetes sets such variables for a Service called telapi: set enableServiceLinks to false`,
		"TELAPI_QUITE_SOMETHING_ELSE=1":                              `TELAPI_QUITE_SOMETHING_ELSE: unknown setting`,
	}
	var environ []string
	for entry := range invalid {
		environ = append(environ, entry)
	}
	_, _, err := Load(environ, Serve)
	var problems Problems
	if !errors.As(err, &problems) || len(problems) != len(invalid)+1 { // API_TLS_ENABLED causes two
		t.Errorf("got %d problems, want %d", len(problems), len(invalid)+1)
	}
	for _, want := range invalid {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("missing in report: %q", want)
		}
	}
	if strings.Contains(fmt.Sprint(err), "hunter2") {
		t.Error("report contains a secret")
	}
	if t.Failed() {
		t.Log(err)
	}
}

func TestModesRequireDifferentSettings(t *testing.T) {
	for _, c := range []struct {
		mode  Mode
		entry string
		want  string // "" for no error
	}{
		{Serve, "", "JWT_SECRET: not set, but required by telapi serve; use at least 32 bytes"},
		{Serve, "JWT_SECRET=" + validSecret[:31], "has only 31 bytes"},
		{Serve, "JWT_SECRET=" + validSecret, ""},
		{Dev, "", ""},
		{Dev, "JWT_SECRET=short", "has only 5 bytes"},
		{Dev, "TTS_MEDIA_CACHE_BASE_URL=http://127.0.0.1:3002", ""},
		{Dev, "API_TLS_ENABLED=true", "EDGE_TLS_PRIVKEY_B64: not set"},
		{Tool, "", ""},
		{Tool, "JWT_SECRET=short", ""},
		{Tool, "API_TLS_ENABLED=true", ""},
		{Tool, "LOG_LEVEL=loud", "LOG_LEVEL"},
		{Dev, "KV_MIN_REPLICAS=1", "the embedded key-value store has no replicas"},
	} {
		_, _, err := Load([]string{c.entry}, c.mode)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("mode %d with %q: error %v, want %q", c.mode, c.entry, err, c.want)
		}
	}
}

func TestDevNeedsNoJWTSecret(t *testing.T) {
	cfg, _ := load(t, Dev)
	if cfg.JWTSecret != "" || cfg.IsSet("JWT_SECRET") {
		t.Error("an unset secret is reported as set")
	}
	for _, s := range cfg.Effective() {
		if s.Name == "JWT_SECRET" && s.Source != Generated {
			t.Errorf("setting %+v, want source %s", s, Generated)
		}
	}
}

func TestWarnings(t *testing.T) {
	for entries, want := range map[string]string{
		"RATE_LIMIT_MAX=5":                             "RATE_LIMIT_MAX has NO EFFECT: remove it",
		"RATE_LIMIT_WINDOW_MS=5":                       "telapi limits set",
		"RATE_LIMIT_MAX=":                              "",
		"METRICS_TOKEN=abc\n":                          "METRICS_TOKEN starts or ends with white space",
		"ENABLE_PII_LOGGING=1":                         `ENABLE_PII_LOGGING is "1", which does not enable it: use true or false`,
		"ENABLE_PII_LOGGING=TRUE":                      "does not enable it",
		"ENABLE_PII_LOGGING=false":                     "",
		"LOG_LEVEL_FILE=/x":                            "LOG_LEVEL_FILE has no effect: only secrets can be in files. Set LOG_LEVEL",
		"MEDIA_TLS_CERT_FILE=/x MEDIA_TLS_KEY_FILE=/x": "",
		"TRUSTED_PROXIES=0.0.0.0/0":                    "every client can spoof its address",
		"DATABASE_URL=postgres://h/d?sslmode=require DATABASE_SSL_MODE=require": "",
		"DATABASE_URL=postgres://h/d?sslmode=require":                           "",
		"REDIS_URL=rediss://h REDIS_TLS_ENABLED=false":                          "TLS stays enabled",
		"REDIS_URL=rediss://h":                                                  "",
	} {
		c, warnings := load(t, Tool, strings.Split(entries, " ")...)
		if c.EnablePIILogging {
			t.Errorf("%s enables the logging of personal data", entries)
		}
		if (len(warnings) == 0) != (want == "") || len(warnings) > 0 && !strings.Contains(warnings[0].String(), want) {
			t.Errorf("%s: warnings %v, want %q", entries, warnings, want)
		}
	}
}

func TestVariableWithoutNameIsIgnored(t *testing.T) {
	c, _ := load(t, Tool, "=/dev/null")
	testkit.Equal(t, "port", c.Port, 3001)
}

func TestSecretKeepsWhiteSpace(t *testing.T) {
	c, _ := load(t, Tool, "METRICS_TOKEN= a=b ")
	testkit.Equal(t, "METRICS_TOKEN", c.MetricsToken.Reveal(), " a=b ")
}

func TestSecretsFromFiles(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	for _, s := range settings() {
		if _, _, err := Load([]string{s.name + "_FILE=" + dir}, Tool); strings.Contains(fmt.Sprint(err), "can't be read") != s.secret {
			t.Errorf("%s_FILE: error %v; secrets, and only they, can come from files", s.name, err)
		}
	}
	token := file("token", " hunter2\n\n")
	c, warnings := load(t, Serve, "JWT_SECRET_FILE="+file("jwt", validSecret+"\n"), "METRICS_TOKEN_FILE="+token, "DATABASE_URL_FILE="+file("url", "postgres://app:hunter2@db/x\r\n"))
	if c.JWTSecret != validSecret || c.MetricsToken != " hunter2\n" || c.DatabaseURL != "postgres://app:hunter2@db/x" || !c.IsSet("JWT_SECRET") {
		t.Errorf("JWT_SECRET %q, METRICS_TOKEN %q, DATABASE_URL %q; want the contents without the last line break", c.JWTSecret.Reveal(), c.MetricsToken.Reveal(), c.DatabaseURL.Reveal())
	}
	if len(warnings) != 1 || warnings[0].Name != "METRICS_TOKEN" {
		t.Errorf("warnings %v, want one about white space", warnings)
	}
	if i := slices.IndexFunc(c.Effective(), func(s Setting) bool { return s.Source == "JWT_SECRET_FILE" && s.Value == redact.Placeholder }); i < 0 {
		t.Error("the effective configuration does not name JWT_SECRET_FILE as a source")
	}
	for entries, want := range map[string]string{
		"METRICS_TOKEN=hunter2 METRICS_TOKEN_FILE=" + token:                       `METRICS_TOKEN_FILE="` + token + `": is set, and so is METRICS_TOKEN; remove one of them`,
		"JWT_SECRET_FILE=" + dir + "/none":                                        `JWT_SECRET_FILE="` + dir + `/none": can't be read: no such file or directory`,
		"JWT_SECRET_FILE=" + dir:                                                  `can't be read: is a directory`,
		"METRICS_TOKEN_FILE=" + file("empty", " \n"):                              "is empty",
		"METRICS_TOKEN_FILE=" + file("huge", strings.Repeat("hunter2", 1<<20)):    "has more than 1048576 bytes",
		"JWT_SECRET_FILE=" + token:                                                "JWT_SECRET=[redacted]: has only 9 bytes",
		"JWT_SECRET_FILE=/dev/null JWT_SECRET=" + validSecret + " METRICS_TOKEN=": "JWT_SECRET; remove one of them",
	} {
		_, _, err := Load(append(strings.Split(entries, " "), "JWT_SECRET_PREVIOUS="+validSecret), Serve)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %v, want %q without the secret", entries, err, want)
		}
		if strings.HasPrefix(entries, "JWT") && len(err.(Problems)) != 1 { //nolint:errorlint // Load documents the type
			t.Errorf("%s: error %v, want one problem", entries, err)
		}
	}
}

func TestOTLPEndpointsOfSignals(t *testing.T) {
	const base, own = "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318/x/", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=https://m.example/in"
	for entries, want := range map[string]OTLPEndpoints{
		"":               {},
		base:             {"http://c:4318/x/v1/traces", "http://c:4318/x/v1/metrics", "http://c:4318/x/v1/logs"},
		own:              {"", "https://m.example/in", ""},
		base + " " + own: {"http://c:4318/x/v1/traces", "https://m.example/in", "http://c:4318/x/v1/logs"},
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://t:1 OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=http://l:1": {"http://t:1", "", "http://l:1"},
	} {
		if c, _ := load(t, Tool, strings.Split(entries, " ")...); c.OTLP() != want {
			t.Errorf("%q exports to %+v, want %+v", entries, c.OTLP(), want)
		}
	}
}

func TestEffectiveConfigurationMasksSecrets(t *testing.T) {
	c, _ := load(t, Tool, "JWT_SECRET=hunter2", "METRICS_TOKEN=hunter2", "DATABASE_URL=postgres://app:hunter2@db1:5432,db2/x?sslmode=require&password=hunter2",
		"REDIS_URL=redis://:hunter2@kv/1", "TELAPI_PORT=5")
	var lines []string
	for _, s := range c.Effective() {
		lines = append(lines, s.Name+"="+s.Value+" "+string(s.Source))
	}
	for _, want := range []string{
		"JWT_SECRET=[redacted] environment",
		"DATABASE_URL=postgres://app:[redacted]@db1:5432,db2/x?[redacted] environment",
		"DATABASE_SSL_MODE=require DATABASE_URL",
		"REDIS_URL=redis://:[redacted]@kv/1 environment",
		"TELAPI_PORT=5 environment",
		"LOG_LEVEL=info default",
		"EDGE_TLS_PRIVKEY_B64= default",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("the line %q is missing", want)
		}
	}
	if all := strings.Join(lines, "\n") + fmt.Sprintf("%v %+v %#v", c, c, c); strings.Contains(all, "hunter2") {
		t.Errorf("the output contains a secret: %s", all)
	}
}

func TestSettingsHaveDescriptionAndValidDefault(t *testing.T) {
	for _, s := range settings() {
		if s.Tag.Get("doc") == "" || s.section == "" || s.valid(Serve) == "" {
			t.Errorf("%s has no description or section", s.name)
		}
		if value := s.Tag.Get("default"); value != "" {
			testkit.NoError(t, fmt.Sprintf("invalid default of %s", s.name), s.assign(reflect.New(s.Type).Elem(), value, Serve))
		}
		if s.Type == reflect.TypeFor[int]() {
			_, err := strconv.ParseInt(s.Tag.Get("max"), 10, 32)
			testkit.NoError(t, fmt.Sprintf("maximum of %s on a platform of 32 bits", s.name), err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	for i, s := range settings() {
		f.Add(i, "1", s.Tag.Get("default"))
		f.Add(i, "redis://:p@h1:1,[::1]:2/0?x=%41", "x,y")
	}
	f.Add(0, "postgres://%zz", "\xff\x00")
	f.Fuzz(func(t *testing.T, index int, value, suffix string) {
		const marker = "Hunter2-marker"
		all := settings()
		s := all[max(0, index%len(all))]
		entries := []string{s.name + "=" + value, "TELAPI_" + suffix + "=" + value}
		if kind, schemes := s.kind(Dev); s.secret && kind != "url" {
			entries = append(entries, s.name+"="+marker+value)
		} else if s.secret {
			scheme, _, _ := strings.Cut(schemes, ",")
			entries = append(entries, s.name+"="+scheme+"://user:"+marker+value)
		}
		for _, entry := range entries {
			for _, mode := range []Mode{Serve, Dev, Tool} {
				c, warnings, err := Load([]string{entry, "JWT_SECRET=" + validSecret}, mode)
				shown := fmt.Sprint(c, warnings, err, c.Effective())
				if strings.Contains(shown, marker) {
					t.Fatalf("%q reveals the secret: %s", entry, shown)
				}
				if err == nil {
					_, _ = c.Redis()
					_, _ = c.EdgeTLS()
					_ = c.MediaCacheCAs()
					_ = c.DatabaseDSN()
				}
			}
		}
	})
}

func TestOnlyHostAndPortHavePrefix(t *testing.T) {
	for _, s := range settings() {
		if strings.HasPrefix(s.name, "TELAPI_") != (s.name == "TELAPI_HOST" || s.name == "TELAPI_PORT") {
			t.Errorf("%s: the error for unknown settings claims that TELAPI_HOST and TELAPI_PORT are the only ones", s.name)
		}
	}
}

func TestDevListensOnLoopback(t *testing.T) {
	for mode, want := range map[Mode]string{Dev: "127.0.0.1", Serve: "", Tool: ""} {
		if c, _ := load(t, mode, "JWT_SECRET="+validSecret); c.Host != want || c.MediaHost != want {
			t.Errorf("mode %d: TELAPI_HOST %q, MEDIA_HOST %q; want %q", mode, c.Host, c.MediaHost, want)
		}
	}
	if c, _ := load(t, Dev, "TELAPI_HOST=0.0.0.0", "MEDIA_HOST=::1"); c.Host != "0.0.0.0" || c.MediaHost != "::1" {
		t.Errorf("TELAPI_HOST %q, MEDIA_HOST %q; want the values that are set", c.Host, c.MediaHost)
	}
}

func TestLocalURL(t *testing.T) {
	for host, want := range map[string]string{
		"": "http://localhost:3001", "0.0.0.0": "http://localhost:3001", "::": "http://localhost:3001",
		"127.0.0.1": "http://localhost:3001", "::1": "http://localhost:3001",
		"127.0.0.2": "http://127.0.0.2:3001",
		"192.0.2.7": "http://192.0.2.7:3001", "2001:db8::7": "http://[2001:db8::7]:3001", "telapi.internal": "http://telapi.internal:3001",
	} {
		testkit.Equal(t, fmt.Sprintf("TELAPI_HOST=%s: URL", host), (Config{Host: host}).LocalURL(3001), want)
	}
}

func TestSpeechProvidersKeepTheirOrder(t *testing.T) {
	if c, _ := load(t, Dev); !slices.Equal(c.SpeechProviders, []string{"tone"}) {
		t.Errorf("dev uses speech providers %v, want tone", c.SpeechProviders)
	}
	if c, _ := load(t, Serve, "JWT_SECRET="+validSecret); len(c.SpeechProviders) > 0 {
		t.Errorf("serve uses speech providers %v, want none", c.SpeechProviders)
	}
	c, _ := load(t, Dev, "SPEECH_PROVIDERS=openai, espeak ,tone", "SPEECH_OPENAI_URL=http://127.0.0.1:9/")
	if want := []string{"openai", "espeak", "tone"}; !slices.Equal(c.SpeechProviders, want) || c.SpeechURL != "http://127.0.0.1:9" {
		t.Errorf("speech providers %v at %s, want %v at http://127.0.0.1:9", c.SpeechProviders, c.SpeechURL, want)
	}
	if _, _, err := Load([]string{"SPEECH_PROVIDERS=openai"}, Dev); err == nil || !strings.Contains(err.Error(), "SPEECH_OPENAI_URL: not set") {
		t.Errorf("openai without its URL: error %v, want \"SPEECH_OPENAI_URL: not set\"", err)
	}
}
