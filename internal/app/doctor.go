package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/auth"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/httpapi"
	"telapi/internal/ratelimit"
	"telapi/internal/redisstore"
	"telapi/internal/speech"
	"telapi/internal/sqlstore"
)

// Finding is the result of one check.
type Finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	// Warning marks something that is not configured, or a setting with which some
	// failures lose data. The text has the remedy.
	Warning bool   `json:"warning,omitzero"`
	Text    string `json:"text"`
}

// Diagnose checks the configuration and the services it refers to. It changes
// nothing. If consoleFingerprint is not empty, it must match the
// fingerprint of JWT_SECRET or JWT_SECRET_PREVIOUS.
//
// It checks what telapi serve would use. Without JWT_SECRET, in a data directory with
// the secret of telapi dev, it checks what that uses.
func Diagnose(ctx context.Context, env []string, consoleFingerprint string, w io.Writer) []Finding {
	var err error
	cfg, warnings, development := developmentConfig(env)
	success := "valid for telapi dev, whose JWT secret is in " + cfg.DataDir + "; telapi serve needs JWT_SECRET"
	if !development {
		cfg, warnings, err = config.Load(env, config.Serve)
		success = "valid for telapi serve"
	}
	if err == nil {
		_, err = PlatformPolicy(cfg)
	}
	d := &diagnosis{development: development}
	d.configuration(success, warnings, err)
	if err != nil {
		// Continue if only a setting that serve requires is missing.
		if cfg, _, err = config.Load(env, config.Tool); err != nil {
			d.add("other checks", "", warningf("skipped: fix the configuration first"))
			return d.findings
		}
	}
	d.cfg, d.log, d.consoleFingerprint = cfg, toolLogger(cfg, w), consoleFingerprint
	defer d.stores.close()
	for _, check := range []struct {
		name string
		run  func(context.Context) (string, error)
	}{
		{"jwt secret", d.jwtSecret},
		{"server", d.server},
		{"database", d.database},
		{"key-value store", d.keyValue},
		{"rate limits", d.rateLimits},
		{"runtimes", d.runtimes},
		{"instances", d.instances},
		{"media service", d.mediaService},
		{"speech", d.speech},
		{"ice servers", d.iceServers},
	} {
		text, err := check.run(ctx)
		d.add(check.name, text, err)
	}
	return d.findings
}

// developmentConfig returns the configuration of telapi dev if it has run in the data
// directory and JWT_SECRET is not set.
func developmentConfig(env []string) (config.Config, []config.Warning, bool) {
	cfg, warnings, err := config.Load(env, config.Dev)
	if err != nil || cfg.JWTSecret != "" {
		return cfg, nil, false
	}
	var saved bool
	if cfg.JWTSecret, saved = savedSecret(cfg.DataDir); !saved {
		return cfg, nil, false
	}
	AddDevelopmentSpeech(&cfg)
	return cfg, warnings, true
}

// diagnosis collects findings.
type diagnosis struct {
	cfg                config.Config
	development        bool // cfg is that of telapi dev
	consoleFingerprint string
	log                *slog.Logger
	health             *httpapi.Health // of the running server; nil if there is none
	stores             stores          // kv is nil unless it is available
	findings           []Finding
}

// warning is the error of a check that found something that works, but needs attention. Its
// text has the remedy.
type warning string

func (w warning) Error() string { return string(w) }

func warningf(format string, args ...any) error { return warning(fmt.Sprintf(format, args...)) }

// add adds the result of a check: a description or an error. A check without either adds
// nothing.
func (d *diagnosis) add(check, text string, err error) {
	_, isWarning := errors.AsType[warning](err)
	if err != nil {
		text = err.Error()
	}
	if text != "" {
		d.findings = append(d.findings, Finding{Check: check, OK: err == nil || isWarning, Warning: isWarning, Text: text})
	}
}

func (d *diagnosis) configuration(success string, warnings []config.Warning, err error) {
	const check = "configuration"
	problems, listed := errors.AsType[config.Problems](err)
	for _, p := range problems {
		d.add(check, "", p)
	}
	for _, w := range warnings { // as failures: in the server's log they are easily overlooked
		d.add(check, "", errors.New(w.String()))
	}
	switch {
	case err != nil && !listed:
		d.add(check, "", err)
	case err == nil && len(warnings) == 0:
		d.add(check, success, nil)
	}
}

// jwtSecret compares the secret with the console's. A secret that is too short is reported as
// a configuration problem.
func (d *diagnosis) jwtSecret(context.Context) (string, error) {
	expected := d.consoleFingerprint
	switch actual := d.cfg.JWTSecret.Fingerprint(); {
	case len(d.cfg.JWTSecret) < auth.MinSecretBytes:
		return "", nil
	case expected == "":
		return "fingerprint " + actual + "; compare it with the console's with --jwt-fingerprint", nil
	case expected == actual:
		return "fingerprint " + actual + " matches", nil
	case d.cfg.JWTPrevious != "" && expected == d.cfg.JWTPrevious.Fingerprint():
		return "fingerprint " + expected + " matches JWT_SECRET_PREVIOUS; remove that once the console uses JWT_SECRET", nil
	default:
		return "", fmt.Errorf("fingerprint is %s, expected %s: every console JWT is rejected with 401. Set JWT_SECRET to the console's secret", actual, expected)
	}
}

// server checks the server on this machine.
func (d *diagnosis) server(ctx context.Context) (string, error) {
	url := APIServerURL(d.cfg)
	status, body, err := CheckHealth(ctx, url)
	if err != nil {
		return "", warningf("no server at %s: %v. Start it with telapi serve or telapi dev, or set TELAPI_HOST and TELAPI_PORT as for the server", url, fault.Reason(err))
	}
	var health httpapi.Health
	if json.Unmarshal(body, &health) != nil || health.Status == "" {
		return "", fmt.Errorf("%s returns status %d, but is not telapi: stop the other program, or set TELAPI_PORT", url, status)
	}
	d.health = &health
	text := fmt.Sprintf("%s, version %s: %s", url, health.Version, health.Status)
	for _, name := range slices.Sorted(maps.Keys(health.Checks)) {
		text += fmt.Sprintf("; %s %s", name, health.Checks[name])
	}
	if status != http.StatusOK {
		return "", fmt.Errorf("%s. Read its log", text)
	}
	return text, nil
}

func (d *diagnosis) database(ctx context.Context) (string, error) {
	if d.cfg.DatabaseURL == "" && !sqlstore.Exists(d.cfg.DataDir) {
		return "", warningf("no SQLite database in %s yet: the server creates it when it starts. Set DATABASE_URL to use PostgreSQL", d.cfg.DataDir)
	}
	if err := d.stores.openDatabase(d.cfg, d.log); err != nil {
		return "", err
	}
	db := d.stores.sql
	if err := db.Ping(ctx); err != nil {
		return "", databaseError(db, d.cfg, err)
	}
	d.clock(ctx, db.String(), db.Clock)
	schema, err := db.SchemaStatus(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", db, fault.Reason(err))
	case len(schema.Pending) > 0:
		return "", warningf("%s is available; pending migrations: %d. Run telapi migrate or restart the server", db, len(schema.Pending))
	case schema.Current > schema.Newest:
		return fmt.Sprintf("%s is available with schema version %d of a newer telapi; this one has version %d and is compatible", db, schema.Current, schema.Newest), nil
	}
	return fmt.Sprintf("%s is available, schema version %d", db, schema.Current), nil
}

// clock compares a server's clock with the local one. Tokens expire by the local
// clock, and work items by the clock of the key-value store.
func (d *diagnosis) clock(ctx context.Context, server string, now func(context.Context) (time.Time, error)) {
	start := time.Now()
	remote, err := now(ctx)
	uncertainty := time.Since(start) / 2 // the latency of each direction is unknown
	skew := remote.Sub(start.Add(uncertainty)).Round(time.Millisecond)
	switch {
	case err != nil:
		err = fmt.Errorf("read clock of %s: %w", server, fault.Reason(err))
	case skew.Abs() > auth.MaxSkew+uncertainty:
		err = fmt.Errorf("clock of %s differs by %s: synchronize both with NTP, or tokens and work items expire at wrong times", server, skew)
	}
	d.add("clocks", fmt.Sprintf("%s and this machine agree within %s", server, (skew.Abs()+uncertainty).Round(time.Millisecond)), err)
}

func (d *diagnosis) keyValue(ctx context.Context) (string, error) {
	err := d.stores.openRunningKeyValue(d.cfg, d.log)
	if errors.Is(err, redisstore.ErrNoServer) {
		return "", warningf("embedded in the server, and no server is running in %s. Start one, or set REDIS_URL to use Redis", d.cfg.DataDir)
	}
	if err != nil {
		return "", err
	}
	kv := d.stores.kv
	connecting, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := kv.Connect(connecting); err != nil {
		d.stores.kv = nil
		return "", keyValueError(err)
	}
	if kv.Full() { // Connect has probed it
		return "", errors.New("full: frames, callbacks and new sessions are rejected. Remedy: " + kv.FullRemedy())
	}
	if d.cfg.RedisURL == "" {
		return "embedded in the server that runs in " + d.cfg.DataDir + " is available", nil
	}
	var names []string
	for _, node := range kv.Nodes() {
		names = append(names, node.Name)
		d.redisNode(ctx, node)
	}
	return "Redis at " + strings.Join(names, ", ") + " is available", nil
}

// rateLimits checks the limits in the key-value store.
func (d *diagnosis) rateLimits(ctx context.Context) (string, error) {
	if d.stores.kv == nil {
		return "", nil
	}
	value, saved, err := d.stores.kv.Limits(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("read rate limits: %w", fault.Reason(err))
	case !saved:
		return "default", nil
	}
	if _, err := ratelimit.ParseLimits(value); err != nil {
		return "", fmt.Errorf("stored rate limits are invalid: %w. Replace them with telapi limits set", fault.Reason(err))
	}
	return "as stored", nil
}

const (
	// maxWait is how long sessions may wait for a runtime before doctor warns.
	maxWait = 30 * time.Second
	// maxListed is the number of channels that doctor reads.
	maxListed = 10_000
)

// runtimes checks whether sessions wait for a runtime.
func (d *diagnosis) runtimes(ctx context.Context) (string, error) {
	if d.stores.kv == nil {
		return "", nil
	}
	offers, err := d.stores.kv.Offers(ctx)
	if err != nil {
		return "", fmt.Errorf("read offers: %w", fault.Reason(err))
	}
	var channels, claimed, expired, waiting int
	var oldest time.Duration
	for c, err := range d.stores.kv.List(ctx) {
		if err != nil {
			return "", fmt.Errorf("list channels: %w", fault.Reason(err))
		}
		channels++
		switch c.Claim {
		case redisstore.ClaimHeld:
			claimed++
		case redisstore.ClaimExpired:
			expired++
		}
		if c.Waiting() {
			waiting++
			oldest = max(oldest, time.Since(c.UnclaimedSince))
		}
		if channels == maxListed {
			break
		}
	}
	text := fmt.Sprintf("channels: %d, claimed: %d, expired claims: %d; offers: %d", channels, claimed, expired, offers)
	if channels == maxListed {
		text += fmt.Sprintf("; counted only the first %d channels", maxListed)
	}
	if oldest > maxWait {
		return "", warningf("%s; sessions that wait for a runtime: %d, the oldest for %s. Start a runtime; telapi channel list shows the sessions", text, waiting, oldest.Round(time.Second))
	}
	return text, nil
}

// instances compares JWT_SECRET with those of running instances.
func (d *diagnosis) instances(ctx context.Context) (string, error) {
	if d.stores.kv == nil || d.cfg.JWTSecret == "" {
		return "", nil
	}
	running, err := d.stores.kv.ShareFingerprint(ctx, "", 0) // publishes nothing
	secrets := auth.Secrets{Current: d.cfg.JWTSecret, Previous: d.cfg.JWTPrevious}
	others := secrets.OtherFingerprints(running)
	switch {
	case err != nil:
		return "", fault.Reason(err)
	case len(running) == 0:
		return "", nil
	case len(others) > 0:
		return "", fmt.Errorf("running instances have other JWT secrets, with the fingerprints %s: tokens work on some instances only. Set the same JWT_SECRET everywhere",
			strings.Join(others, ", "))
	}
	return "running instances have the same JWT secret", nil
}

func (d *diagnosis) mediaService(ctx context.Context) (string, error) {
	client, err := openMedia(d.cfg)
	switch {
	case err != nil:
		return "", err
	case client == nil && d.development && d.health != nil:
		status := d.health.Checks["media"]
		text := "part of telapi dev: " + status
		if status != statusOK {
			return "", errors.New(text + ". Read the log of telapi dev")
		}
		return text, nil
	case client == nil && d.development:
		return "", warningf("part of telapi dev, which is not running")
	case client == nil:
		return "", warningf("not configured: speech is synthesized on every request. Run telapi media and set TTS_MEDIA_CACHE_BASE_URL")
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err = client.Ping(ctx)
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "", fmt.Errorf("certificate not trusted: %w. Set TTS_MEDIA_CACHE_CA_BUNDLE to the CA that signed it", untrusted.Err)
	}
	if err != nil {
		return "", fmt.Errorf("%w. Check TTS_MEDIA_CACHE_BASE_URL and TTS_MEDIA_CACHE_CA_BUNDLE", err)
	}
	return d.cfg.MediaCacheURL + " is available", nil
}

// speech lets every provider say a word.
func (d *diagnosis) speech(ctx context.Context) (string, error) {
	providers, err := speechProviders(ctx, d.cfg)
	switch {
	case err != nil:
		return "", err
	case len(providers) == 0:
		return "", warningf("no speech provider configured; speech requests return 503. Set SPEECH_PROVIDERS")
	}
	for i, p := range providers {
		voice, model := p.Resolve("", "") // the provider's defaults
		sound, err := p.Synthesize(ctx, speech.Utterance{Text: "telapi", Voice: voice, Model: model, Speed: 1})
		if err != nil {
			d.add("speech", "", fmt.Errorf("provider %s: %w", p.Name(), err))
			continue
		}
		seconds := float64(len(sound.Samples)) / float64(sound.Rate)
		d.add("speech", fmt.Sprintf("provider %d, %s: %.1f s of audio with voice %s and model %s", i+1, p.Name(), seconds, voice, model), nil)
	}
	return "", nil
}
