package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"telapi/internal/auth"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/redisstore"
	"telapi/internal/sqlstore"
)

// Finding is what the doctor says of one thing.
type Finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Text  string `json:"text"`
}

// Diagnose checks the configuration and everything it points at. It changes
// nothing. A fingerprint of the console's secret is held against ours.
func Diagnose(ctx context.Context, env []string, fingerprint string, log io.Writer) []Finding {
	d := &diagnosis{}
	cfg, warnings, err := config.Load(env, config.Serve)
	if err == nil {
		_, err = Platform(cfg)
	}
	d.configuration(warnings, err)
	if err != nil {
		// What only serve insists on need not keep the rest from being checked.
		if cfg, _, err = config.Load(env, config.Tool); err != nil {
			d.find("everything else", "", errors.New("is not checked until the configuration is mended"))
			return d.findings
		}
	}
	d.cfg, d.log = cfg, toolLogger(cfg, log)
	if len(cfg.JWTSecret) >= auth.MinSecretBytes { // or else the configuration's finding says it
		text, err := compareSecrets(cfg, fingerprint)
		d.find("jwt secret", text, err)
	}
	d.look(ctx, "database", d.database)
	d.look(ctx, "key-value store", d.keyValue)
	d.look(ctx, "media service", d.mediaService)
	d.look(ctx, "speech", d.speech)
	return d.findings
}

type diagnosis struct {
	cfg      config.Config
	log      *slog.Logger
	findings []Finding
}

// look has something checked, which returns what is well or what is wrong.
func (d *diagnosis) look(ctx context.Context, check string, into func(context.Context) (string, error)) {
	text, err := into(ctx)
	d.find(check, text, err)
}

func (d *diagnosis) find(check, text string, err error) {
	if err != nil {
		text = err.Error()
	}
	d.findings = append(d.findings, Finding{check, err == nil, text})
}

func (d *diagnosis) configuration(warnings []config.Warning, err error) {
	const check = "configuration"
	var problems config.Problems
	if errors.As(err, &problems) {
		for _, p := range problems {
			d.find(check, "", p)
		}
	} else if err != nil {
		d.find(check, "", err)
	}
	for _, w := range warnings {
		d.find(check, "", errors.New(w.String()))
	}
	if err == nil && len(warnings) == 0 {
		d.find(check, "every value is allowed, no deprecated name is set", nil)
	}
}

func compareSecrets(cfg config.Config, expected string) (string, error) {
	switch own := cfg.JWTSecret.Fingerprint(); {
	case expected == "":
		return "fingerprint " + own + "; compare it with the console's by --jwt-fingerprint", nil
	case expected == own:
		return "fingerprint " + own + ", as given", nil
	case cfg.JWTPrevious != "" && expected == cfg.JWTPrevious.Fingerprint():
		return "fingerprint " + expected + ", as given, is that of JWT_SECRET_PREVIOUS: its tokens are accepted until that is removed", nil
	default:
		return "", fmt.Errorf("fingerprint is %s, given was %s: JWT_SECRET is not the console's, and every console JWT is answered 401", own, expected)
	}
}

func (d *diagnosis) database(ctx context.Context) (string, error) {
	settings := "DATABASE_URL and DATABASE_SSL_MODE"
	if d.cfg.DatabaseURL == "" {
		settings = "DATA_DIR"
		if !sqlstore.Exists(d.cfg.DataDir) {
			return "SQLite in " + d.cfg.DataDir + ", which the first start makes", nil
		}
	}
	var s stores
	defer s.close()
	if err := s.openDatabase(d.cfg, d.log); err != nil {
		return "", err
	}
	db := s.sql
	if err := db.Ping(ctx); err != nil {
		return "", fmt.Errorf("%s cannot be used: %w. Check %s", db, reason(err), settings)
	}
	d.look(ctx, "clocks", clock(db.String(), db.Clock))
	schema, err := db.MigrationStatus(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", db, reason(err))
	case len(schema.Pending) > 0:
		return fmt.Sprintf("%s is reached; %d migrations are pending and run at the next start, or by telapi migrate", db, len(schema.Pending)), nil
	case schema.Current > schema.Newest:
		return fmt.Sprintf("%s is reached; a newer telapi has migrated it to schema version %d, on which this one, of version %d, can run", db, schema.Current, schema.Newest), nil
	}
	return fmt.Sprintf("%s is reached, schema version %d", db, schema.Current), nil
}

// clock compares another machine's time with our own, half way through the
// question: tokens are checked by the machine's, deadlines of work items by the
// key-value store's.
func clock(whose string, ask func(context.Context) (time.Time, error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		asked := time.Now()
		theirs, err := ask(ctx)
		took := time.Since(asked)
		skew := theirs.Sub(asked.Add(took / 2)).Round(time.Millisecond)
		switch {
		case err != nil:
			return "", fmt.Errorf("%s does not tell its time: %w", whose, reason(err))
		case skew.Abs() > auth.MaxSkew+took/2:
			return "", fmt.Errorf("%s is %s away from this machine's time: synchronise both by NTP, or tokens and deadlines end too early or too late", whose, skew)
		}
		return fmt.Sprintf("%s and this machine agree within %s", whose, (skew.Abs() + took/2).Round(time.Millisecond)), nil
	}
}

func (d *diagnosis) keyValue(ctx context.Context) (string, error) {
	var s stores
	defer s.close()
	if err := s.joinKeyValue(d.cfg, d.log); err != nil {
		return "", err
	}
	kv := s.kv
	if kv == nil {
		return "embedded, and no server is running it now", nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := kv.Connect(ctx); err != nil {
		return "", fmt.Errorf("cannot be reached: %w. Check REDIS_URL and REDIS_TLS_ENABLED", reason(err))
	}
	if d.cfg.RedisURL != "" {
		d.nodes(ctx, kv)
	}
	value, saved, err := kv.Limits(ctx)
	if err == nil && saved {
		_, err = ratelimit.ParseLimits(value)
	}
	if err != nil {
		return "", fmt.Errorf("is reached, but the saved rate limits are refused: %w. Save good ones with telapi limits set", reason(err))
	}
	return "is reached", nil
}

// wanted are the settings of a node without which conversations can be lost.
var wanted = []struct{ name, value, otherwise string }{
	{"maxmemory-policy", "noeviction", "a full server throws live conversations away instead of refusing new ones"},
	{"appendonly", "yes", "what was acknowledged is lost when the server restarts"},
}

func (d *diagnosis) nodes(ctx context.Context, kv *redisstore.Store) {
	for _, node := range kv.Nodes() {
		d.look(ctx, "clocks", clock("Redis at "+node.Name, node.Clock))
		for _, w := range wanted {
			d.look(ctx, w.name, func(ctx context.Context) (string, error) {
				switch value := node.Setting(ctx, w.name); value {
				case w.value:
					return fmt.Sprintf("is %s on %s", value, node.Name), nil
				case "":
					return fmt.Sprintf("is not told by %s: see to it that it is %s there", node.Name, w.value), nil
				default:
					return "", fmt.Errorf("is %s on %s: %s. Set it to %s", value, node.Name, w.otherwise, w.value)
				}
			})
		}
	}
}

func (d *diagnosis) mediaService(ctx context.Context) (string, error) {
	client, err := openMedia(d.cfg)
	switch {
	case err != nil:
		return "", err
	case client == nil:
		return "not configured; speech is not cached", nil
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err = client.Ping(ctx)
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return "", fmt.Errorf("presents a certificate that TTS_MEDIA_CACHE_CA_BUNDLE does not vouch for: %w. Give the bundle of the CA that signed it", untrusted.Err)
	case err != nil:
		return "", fmt.Errorf("%w. Check TTS_MEDIA_CACHE_BASE_URL and TTS_MEDIA_CACHE_CA_BUNDLE", err)
	}
	return "is reached", nil
}

func (d *diagnosis) speech(ctx context.Context) (string, error) {
	chain, err := speechProviders(ctx, d.cfg)
	switch {
	case err != nil:
		return "", err
	case len(chain) == 0:
		return "nobody speaks: requests for speech are answered 503 until SPEECH_PROVIDERS names somebody", nil
	}
	return strings.Join(d.cfg.SpeechProviders, ", ") + ", in this order", nil
}

// reason is the cause of a refusal where it has one: at a prompt it says more
// than the public text.
func reason(err error) error {
	var refusal *fault.Error
	if errors.As(err, &refusal) && refusal.Cause != nil {
		return refusal.Cause
	}
	return err
}
