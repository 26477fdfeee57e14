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
	"telapi/internal/speech"
	"telapi/internal/sqlstore"
)

// Finding is the result of one check.
type Finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	// Warning marks a setting with which some failures lose data.
	Warning bool   `json:"warning,omitzero"`
	Text    string `json:"text"`
}

// Diagnose checks the configuration and the services it refers to. It changes
// nothing. If consoleFingerprint is not empty, it must match the
// fingerprint of JWT_SECRET or JWT_SECRET_PREVIOUS.
func Diagnose(ctx context.Context, env []string, consoleFingerprint string, log io.Writer) []Finding {
	d := &diagnosis{}
	cfg, warnings, err := config.Load(env, config.Serve)
	if err == nil {
		_, err = PlatformPolicy(cfg)
	}
	d.configuration(warnings, err)
	if err != nil {
		// Continue if only a setting that serve requires is missing.
		if cfg, _, err = config.Load(env, config.Tool); err != nil {
			d.add("other checks", "", errors.New("skipped: fix the configuration first"))
			return d.findings
		}
	}
	d.cfg, d.log = cfg, commandLogger(cfg, log)
	if len(cfg.JWTSecret) >= auth.MinSecretBytes { // otherwise reported as a configuration problem
		text, err := compareSecrets(cfg, consoleFingerprint)
		d.add("jwt secret", text, err)
	}
	d.run(ctx, "database", d.database)
	d.run(ctx, "key-value store", d.keyValue)
	d.run(ctx, "media service", d.mediaService)
	d.speech(ctx)
	d.iceServers(ctx)
	return d.findings
}

// diagnosis collects findings.
type diagnosis struct {
	cfg      config.Config
	log      *slog.Logger
	findings []Finding
}

// run runs a check, which returns a description or an error, and adds its result.
func (d *diagnosis) run(ctx context.Context, name string, check func(context.Context) (string, error)) {
	text, err := check(ctx)
	d.add(name, text, err)
}

func (d *diagnosis) add(check, text string, err error) {
	if err != nil {
		text = err.Error()
	}
	d.findings = append(d.findings, Finding{Check: check, OK: err == nil, Text: text})
}

func (d *diagnosis) warn(check, format string, args ...any) {
	d.findings = append(d.findings, Finding{Check: check, OK: true, Warning: true, Text: fmt.Sprintf(format, args...)})
}

func (d *diagnosis) configuration(warnings []config.Warning, err error) {
	const check = "configuration"
	problems, listed := errors.AsType[config.Problems](err)
	for _, p := range problems {
		d.add(check, "", p)
	}
	for _, w := range warnings {
		d.add(check, "", errors.New(w.String()))
	}
	if err != nil && !listed || err == nil && len(warnings) == 0 {
		d.add(check, "valid", err)
	}
}

func compareSecrets(cfg config.Config, expected string) (string, error) {
	switch actual := cfg.JWTSecret.Fingerprint(); {
	case expected == "":
		return "fingerprint " + actual + "; compare it with the console's with --jwt-fingerprint", nil
	case expected == actual:
		return "fingerprint " + actual + " matches", nil
	case cfg.JWTPrevious != "" && expected == cfg.JWTPrevious.Fingerprint():
		return "fingerprint " + expected + " matches JWT_SECRET_PREVIOUS; remove that once the console uses JWT_SECRET", nil
	default:
		return "", fmt.Errorf("fingerprint is %s, expected %s: every console JWT is rejected with 401. Set JWT_SECRET to the console's secret", actual, expected)
	}
}

func (d *diagnosis) database(ctx context.Context) (string, error) {
	settings := "DATABASE_URL and DATABASE_SSL_MODE"
	if d.cfg.DatabaseURL == "" {
		settings = "DATA_DIR"
		if !sqlstore.Exists(d.cfg.DataDir) {
			return "SQLite in " + d.cfg.DataDir + ", created at the first start", nil
		}
	}
	var s stores
	defer s.close()
	if err := s.openDatabase(d.cfg, d.log); err != nil {
		return "", err
	}
	db := s.sql
	if err := db.Ping(ctx); err != nil {
		return "", fmt.Errorf("%s is unavailable: %w. Check %s", db, cause(err), settings)
	}
	d.clock(ctx, db.String(), db.Clock)
	schema, err := db.MigrationStatus(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", db, cause(err))
	case len(schema.Pending) > 0:
		return fmt.Sprintf("%s is available; %d migrations are pending: run telapi migrate or restart the server", db, len(schema.Pending)), nil
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
		err = fmt.Errorf("read clock of %s: %w", server, cause(err))
	case skew.Abs() > auth.MaxSkew+uncertainty:
		err = fmt.Errorf("clock of %s differs by %s: synchronize both with NTP, or tokens and work items expire at wrong times", server, skew)
	}
	d.add("clocks", fmt.Sprintf("%s and this machine agree within %s", server, (skew.Abs()+uncertainty).Round(time.Millisecond)), err)
}

func (d *diagnosis) keyValue(ctx context.Context) (string, error) {
	var s stores
	defer s.close()
	if err := s.openKeyValueForCommand(d.cfg, d.log); err != nil {
		return "", err
	}
	kv := s.kv
	if kv == nil {
		return "embedded; no server is running", nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := kv.Connect(ctx); err != nil {
		return "", fmt.Errorf("unavailable: %w. Check REDIS_URL and REDIS_TLS_ENABLED", cause(err))
	}
	if d.cfg.RedisURL != "" {
		d.nodes(ctx, kv)
	}
	d.run(ctx, "runtimes", func(ctx context.Context) (string, error) { return d.runtimes(ctx, kv) })
	if err := d.instanceSecrets(ctx, kv); err != nil {
		return "", err
	}
	value, saved, err := kv.Limits(ctx)
	if err != nil {
		return "", fmt.Errorf("read rate limits: %w", cause(err))
	}
	if saved {
		_, err = ratelimit.ParseLimits(value)
	}
	if err != nil {
		return "", fmt.Errorf("stored rate limits are invalid: %w. Replace them with telapi limits set", cause(err))
	}
	return "available", nil
}

const (
	// maxWait is how long sessions may wait for a runtime before doctor warns.
	maxWait = 30 * time.Second
	// maxListed bounds the channels that doctor reads.
	maxListed = 10_000
)

// runtimes checks whether sessions wait for a runtime.
func (d *diagnosis) runtimes(ctx context.Context, kv *redisstore.Store) (string, error) {
	offers, groups, err := kv.Offers(ctx)
	if err != nil {
		return "", fmt.Errorf("read offers: %w", cause(err))
	}
	var channels, claimed, expired, waiting int
	var oldest time.Duration
	for c, err := range kv.List(ctx) {
		if err != nil {
			return "", cause(err)
		}
		switch channels++; c.Claim {
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
	text := fmt.Sprintf("channels: %d, claimed: %d, expired claims: %d; offers: %d, groups: %d", channels, claimed, expired, offers, groups)
	if channels == maxListed {
		text += "; only the first channels were counted"
	}
	if oldest > maxWait {
		d.warn("runtimes", "sessions that wait for a runtime: %d, the oldest for %s. Start a runtime; telapi channel list shows the sessions", waiting, oldest.Round(time.Second))
	}
	return text, nil
}

// instanceSecrets compares JWT_SECRET with those of running instances.
func (d *diagnosis) instanceSecrets(ctx context.Context, kv *redisstore.Store) error {
	all, err := kv.ShareFingerprint(ctx, "", 0)
	if err != nil {
		return fmt.Errorf("read fingerprints of JWT secrets: %w", cause(err))
	}
	const check = "instances"
	secrets := auth.Secrets{Current: d.cfg.JWTSecret, Previous: d.cfg.JWTPrevious}
	switch others := secrets.OtherFingerprints(all); {
	case d.cfg.JWTSecret == "":
	case len(others) > 0:
		d.add(check, "", fmt.Errorf("running instances have other JWT secrets, with the fingerprints %s: tokens work on some instances only. Set the same JWT_SECRET everywhere",
			strings.Join(others, ", ")))
	case len(all) > 0:
		d.add(check, "running instances have the same JWT secret", nil)
	}
	return nil
}

// redisSettings lists the settings that a Redis server needs to keep channels.
var redisSettings = []struct{ name, value, risk string }{
	{"maxmemory-policy", "noeviction", "a full server deletes live channels instead of refusing new ones"},
	{"appendonly", "yes", "acknowledged data is lost when the server restarts"},
}

// nodes checks the clock and the settings of each Redis server.
func (d *diagnosis) nodes(ctx context.Context, kv *redisstore.Store) {
	for _, node := range kv.Nodes() {
		d.clock(ctx, "Redis at "+node.Name, node.Clock)
		for _, s := range redisSettings {
			switch value := node.Setting(ctx, s.name); value {
			case s.value:
				d.add(s.name, value+" on "+node.Name, nil)
			case "":
				d.add(s.name, fmt.Sprintf("not readable on %s: make sure that it is %s", node.Name, s.value), nil)
			default:
				d.add(s.name, "", fmt.Errorf("%s on %s: %s. Set it to %s", value, node.Name, s.risk, s.value))
			}
		}
		d.appendfsync(ctx, node)
		d.replicas(ctx, node)
	}
}

// appendfsync checks how much data a crash of the machine loses.
func (d *diagnosis) appendfsync(ctx context.Context, node redisstore.Node) {
	const check = "appendfsync"
	switch value := node.Setting(ctx, check); value {
	case "always":
		d.add(check, value+" on "+node.Name, nil)
	case "everysec":
		d.warn(check, "everysec on %s: a machine crash loses up to 2 s of acknowledged frames and callbacks. Set it to always to keep them", node.Name)
	case "":
		d.add(check, fmt.Sprintf("not readable on %s: make sure that it is always, or everysec", node.Name), nil)
	default:
		d.add(check, "", fmt.Errorf("%s on %s: a machine crash loses all that the operating system has not written yet. Set it to always, or to everysec", value, node.Name))
	}
}

// replicas checks how much data a failover loses.
func (d *diagnosis) replicas(ctx context.Context, node redisstore.Node) {
	const check = "min-replicas-to-write"
	replicas, isMaster := node.Replicas(ctx)
	if !isMaster {
		return
	}
	if replicas < d.cfg.KVMinReplicas {
		d.add(check, "", fmt.Errorf("%s has %d replicas, but KV_MIN_REPLICAS is %d: frames and callbacks are refused. Add replicas, or lower KV_MIN_REPLICAS",
			node.Name, replicas, d.cfg.KVMinReplicas))
		return
	}
	switch value := node.Setting(ctx, check); {
	case replicas == 0:
		d.add(check, node.Name+" has no replicas", nil)
	case value == "":
		d.add(check, fmt.Sprintf("not readable on %s: make sure that it is 1 or more", node.Name), nil)
	case value == "0":
		d.warn(check, "0 on %s, which has %d replicas: a master that lost its replicas accepts writes that a failover discards. Set it to 1", node.Name, replicas)
	case d.cfg.KVMinReplicas == 0:
		d.warn(check, "%s on %s, but KV_MIN_REPLICAS is 0: a failover can discard frames and callbacks that were acknowledged a moment before. Set KV_MIN_REPLICAS to 1", value, node.Name)
	default:
		d.add(check, fmt.Sprintf("%s on %s; KV_MIN_REPLICAS is %d", value, node.Name, d.cfg.KVMinReplicas), nil)
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
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "", fmt.Errorf("certificate not trusted: %w. Set TTS_MEDIA_CACHE_CA_BUNDLE to the CA that signed it", untrusted.Err)
	}
	if err != nil {
		return "", fmt.Errorf("%w. Check TTS_MEDIA_CACHE_BASE_URL and TTS_MEDIA_CACHE_CA_BUNDLE", err)
	}
	return "available", nil
}

// speech lets every provider say a word.
func (d *diagnosis) speech(ctx context.Context) {
	const check = "speech"
	providers, err := speechProviders(ctx, d.cfg)
	if err != nil || len(providers) == 0 {
		d.add(check, "no speech provider configured; speech requests return 503. Set SPEECH_PROVIDERS", err)
	}
	for i, p := range providers {
		voice, model := p.Resolve("", "")
		sound, err := p.Synthesize(ctx, speech.Utterance{Text: "telapi", Voice: voice, Model: model, Speed: 1})
		if err != nil {
			err = fmt.Errorf("provider %s: %w", p.Name(), err)
		}
		d.add(check, fmt.Sprintf("provider %d, %s: %.1f s of audio with voice %s and model %s", i+1, p.Name(), float64(len(sound.Samples))/float64(sound.Rate), voice, model), err)
	}
}

// cause returns the internal cause of an error, which is more useful to operators
// than its public text.
func cause(err error) error {
	if public, ok := errors.AsType[*fault.Error](err); ok && public.Cause != nil {
		return public.Cause
	}
	return err
}
