package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
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

// Symptoms are what an operator may hold against the configuration.
type Symptoms struct {
	JWTFingerprint string // of the console's secret
	ConsoleJWT     string // a token the console issued
}

// Diagnose checks the configuration and everything it points at. It changes
// nothing.
func Diagnose(ctx context.Context, env []string, given Symptoms, log io.Writer) []Finding {
	d := &diagnosis{}
	cfg, warnings, err := config.Load(env, config.Serve)
	if err == nil {
		_, err = Platform(cfg)
	}
	d.configuration(warnings, err)
	if err != nil {
		// What only serve insists on need not keep the rest from being checked.
		if cfg, _, err = config.Load(env, config.Tool); err != nil {
			d.bad("everything else", "is not checked until the configuration is mended")
			return d.findings
		}
	}
	d.signing(cfg, given)
	d.database(ctx, cfg, log)
	d.keyValue(ctx, cfg, log)
	d.mediaService(ctx, cfg)
	d.speech(ctx, cfg)
	return d.findings
}

type diagnosis struct{ findings []Finding }

func (d *diagnosis) good(check, format string, args ...any) {
	d.findings = append(d.findings, Finding{check, true, fmt.Sprintf(format, args...)})
}

func (d *diagnosis) bad(check, format string, args ...any) {
	d.findings = append(d.findings, Finding{check, false, fmt.Sprintf(format, args...)})
}

func (d *diagnosis) configuration(warnings []config.Warning, err error) {
	var problems config.Problems
	switch {
	case errors.As(err, &problems):
		for _, p := range problems {
			d.bad("configuration", "%v", p)
		}
	case err != nil:
		d.bad("configuration", "%v", err)
	}
	for _, w := range warnings {
		d.bad("configuration", "%s", w)
	}
	if err == nil && len(warnings) == 0 {
		d.good("configuration", "every value is allowed, no deprecated name is set")
	}
}

func (d *diagnosis) signing(cfg config.Config, given Symptoms) {
	const check = "jwt secret"
	own := cfg.JWTSecret.Fingerprint()
	if len(cfg.JWTSecret) < auth.MinSecretBytes {
		return // the configuration's finding says it
	}
	switch expected := given.JWTFingerprint; {
	case expected == "":
		d.good(check, "fingerprint %s; compare it with the console's by --jwt-fingerprint", own)
	case expected == own:
		d.good(check, "fingerprint %s, as given", own)
	case cfg.JWTPrevious != "" && expected == cfg.JWTPrevious.Fingerprint():
		d.good(check, "fingerprint %s, as given, is that of JWT_SECRET_PREVIOUS: its tokens are accepted until that is removed", expected)
	default:
		d.bad(check, "fingerprint is %s, given was %s: JWT_SECRET is not the console's, and every console JWT is answered 401", own, expected)
	}
	if given.ConsoleJWT == "" {
		return
	}
	who, err := auth.NewConsoleTokens(jwtSecrets(cfg), time.Now).Verify(given.ConsoleJWT)
	if err != nil {
		d.bad(check, "the given console JWT is refused: %v", fault.From(err).Cause)
		return
	}
	d.good(check, "the given console JWT is accepted, for team %s", who.TeamID)
}

func (d *diagnosis) database(ctx context.Context, cfg config.Config, log io.Writer) {
	const check = "database"
	if cfg.DatabaseURL == "" && !sqlstore.Exists(cfg.DataDir) {
		d.good(check, "SQLite in %s, which the first start makes", cfg.DataDir)
		return
	}
	db, err := openDatabase(cfg, toolLogger(cfg, log))
	if err != nil {
		d.bad(check, "%v", err)
		return
	}
	defer func() { _ = db.Close() }()
	if err := db.Ping(ctx); err != nil {
		d.bad(check, "%s cannot be used: %v. Check %s", db, reason(err), databaseSettings(cfg))
		return
	}
	schema, err := db.MigrationStatus(ctx)
	switch {
	case err != nil:
		d.bad(check, "%s: %v", db, reason(err))
	case len(schema.Pending) > 0:
		d.good(check, "%s is reached; %d migrations are pending and run at the next start, or by telapi migrate", db, len(schema.Pending))
	default:
		d.good(check, "%s is reached, schema version %d", db, schema.Current)
	}
	d.clock(db.String(), func() (time.Time, error) { return db.Clock(ctx) })
}

// maxSkew is how far clocks may be apart: tokens are checked by the machine's,
// deadlines of work items by the key-value store's, and both in seconds.
const maxSkew = 2 * time.Second

// clock compares another machine's time with our own, half way through the
// question.
func (d *diagnosis) clock(whose string, ask func() (time.Time, error)) {
	const check = "clocks"
	asked := time.Now()
	theirs, err := ask()
	if err != nil {
		d.bad(check, "%s does not tell its time: %v", whose, reason(err))
		return
	}
	took := time.Since(asked)
	skew := theirs.Sub(asked.Add(took / 2)).Round(time.Millisecond)
	if skew.Abs() > maxSkew+took/2 {
		d.bad(check, "%s is %s away from this machine's time: synchronise both by NTP, or tokens and deadlines end too early or too late", whose, skew)
		return
	}
	d.good(check, "%s and this machine agree within %s", whose, (skew.Abs() + took/2).Round(time.Millisecond))
}

// databaseSettings names what to look at when the database is not as it should be.
func databaseSettings(cfg config.Config) string {
	if cfg.DatabaseURL == "" {
		return "DATA_DIR"
	}
	return "DATABASE_URL and DATABASE_SSL_MODE"
}

func (d *diagnosis) keyValue(ctx context.Context, cfg config.Config, log io.Writer) {
	const check = "key-value store"
	kv, err := joinKeyValue(cfg, toolLogger(cfg, log))
	if err != nil {
		d.bad(check, "%v", err)
		return
	}
	if kv == nil {
		d.good(check, "embedded, and no server is running it now")
		return
	}
	defer kv.Close()
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := kv.Connect(ctx); err != nil {
		d.bad(check, "cannot be reached: %v. Check REDIS_URL and REDIS_TLS_ENABLED", reason(err))
		return
	}
	value, saved, err := kv.Limits(ctx)
	if err == nil && saved {
		_, err = ratelimit.ParseLimits(value)
	}
	if err != nil {
		d.bad(check, "is reached, but the saved rate limits are refused: %v. Save good ones with telapi limits set", reason(err))
		return
	}
	d.good(check, "is reached")
	if cfg.RedisURL != "" {
		d.nodes(ctx, kv)
	}
}

// wanted are the settings of a node without which conversations can be lost.
var wanted = []struct{ name, value, otherwise string }{
	{"maxmemory-policy", "noeviction", "a full server throws live conversations away instead of refusing new ones"},
	{"appendonly", "yes", "what was acknowledged is lost when the server restarts"},
}

func (d *diagnosis) nodes(ctx context.Context, kv *redisstore.Store) {
	for _, node := range kv.Nodes() {
		d.clock("Redis at "+node.Name, func() (time.Time, error) { return node.Clock(ctx) })
		for _, w := range wanted {
			switch value := node.Setting(ctx, w.name); value {
			case w.value:
				d.good(w.name, "is %s on %s", value, node.Name)
			case "":
				d.good(w.name, "is not told by %s: see to it that it is %s there", node.Name, w.value)
			default:
				d.bad(w.name, "is %s on %s: %s. Set it to %s", value, node.Name, w.otherwise, w.value)
			}
		}
	}
}

func (d *diagnosis) mediaService(ctx context.Context, cfg config.Config) {
	const check = "media service"
	client, err := openMedia(cfg)
	switch {
	case err != nil:
		d.bad(check, "%v", err)
		return
	case client == nil:
		d.good(check, "not configured; speech is not cached")
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err = client.Ping(ctx)
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		d.bad(check, "presents a certificate that TTS_MEDIA_CACHE_CA_BUNDLE does not vouch for: %v. Give the bundle of the CA that signed it", untrusted.Err)
		return
	case err != nil:
		d.bad(check, "%v. Check TTS_MEDIA_CACHE_BASE_URL and TTS_MEDIA_CACHE_CA_BUNDLE", err)
		return
	}
	d.good(check, "is reached")
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
