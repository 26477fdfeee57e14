// Package app assembles the service from configuration, adapters and domain. New
// contains the whole assembly.
package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"telapi/api"
	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/command"
	"telapi/internal/config"
	"telapi/internal/demo"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/httpapi"
	"telapi/internal/media"
	"telapi/internal/ratelimit"
	"telapi/internal/redisstore"
	"telapi/internal/runtimeapi"
	"telapi/internal/session"
	"telapi/internal/speech"
	"telapi/internal/synth"
	"telapi/internal/team"
	"telapi/internal/usage"
)

// Options are the settings of a process that are not part of its configuration.
type Options struct {
	Version     string
	Log         io.Writer
	Warnings    []config.Warning // logged at start
	Development bool             // for telapi dev: pages of any origin may open sockets, and a demo team exists
	DemoBot     bool             // run the demo runtime and bot; only with Development
	BotURL      string           // a bot on this machine that answers instead of the demo bot; only with DemoBot
	// Instances is the number of processes that serve the API behind this one, for
	// telapi dev. Zero: this process serves it. InstanceCommand returns the command of
	// such a process; it prints its address when it is ready and shuts down when its
	// input ends.
	Instances       int
	InstanceCommand func() *exec.Cmd
	// Join makes this process one of the Instances of another process: it uses the
	// stores that the other one has opened in the same data directory.
	Join bool
}

// App is the API server. New binds its port; Run serves until its context ends.
type App struct {
	process
	version  string
	started  time.Time
	stores   stores
	media    *media.Client // nil if not configured
	probes   []*probe
	speech   *speech.Service
	server   *httpapi.Server
	draining atomic.Bool
	observer observer
	demo     *demoState // nil unless in development
	// instances serve the API; nil: this process does
	instances *instances
}

// New assembles the server. If it fails, it closes everything it opened. Otherwise
// Run closes it.
func New(ctx context.Context, cfg config.Config, opts Options) (_ *App, err error) {
	a := &App{process: process{cfg: cfg}, version: opts.Version, started: time.Now(), observer: observer{cfg: cfg}}
	defer func() {
		if err != nil {
			a.close()
		}
	}()

	if opts.Development && !opts.Join {
		a.demo = &demoState{withBot: opts.DemoBot, botURL: opts.BotURL, events: demo.NewHub(), stopped: make(chan struct{}), ready: make(chan struct{})}
		a.demo.ctx, a.demo.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	platform, err := PlatformPolicy(cfg)
	if err != nil {
		return nil, err
	}
	if a.listener, err = listenAPI(ctx, cfg); err != nil {
		return nil, err
	}
	a.onClose(func() { _ = a.listener.Close() }) // Shutdown has closed it already
	if err := a.startTelemetry(ctx, opts); err != nil {
		return nil, err
	}
	a.onClose(a.stores.close)
	openStores := a.stores.openForServer
	if opts.Join {
		openStores = a.stores.join
	}
	if err := openStores(cfg, a.log); err != nil {
		return nil, err
	}
	if a.media, err = openMedia(cfg); err != nil {
		return nil, err
	}
	if a.media != nil {
		a.onClose(a.media.Close)
	}
	a.onClose(a.observer.close)
	if opts.Development && cfg.JWTSecret == "" {
		if cfg.JWTSecret, err = developmentSecret(cfg.DataDir); err != nil {
			return nil, err
		}
		a.cfg.JWTSecret = cfg.JWTSecret
	}
	db, kv := a.stores.sql, a.stores.kv

	secrets := auth.Secrets{Current: cfg.JWTSecret, Previous: cfg.JWTPrevious}
	failures := auth.NewTokenFailures(a.telemetry.Registry)
	authenticator := auth.NewAuthenticator(db, auth.NewConsoleTokens(secrets, cfg.JWTMaxAge, time.Now), failures, a.log, time.Now)
	teams := team.NewCatalog(db)
	limits := ratelimit.NewSettings(kv, db, a.log, a.telemetry.Registry)
	limiter := ratelimit.NewLimiter(kv, limits.Limits, a.telemetry.Registry)
	endpointCache := endpoint.NewCache()
	a.onClose(func() { authenticator.Close(); teams.Close(); endpointCache.Close(); limiter.Close() }) // before the stores
	features := endpoint.Features{APIAccess: cfg.FeatureAPIAccess, WebRTC: cfg.FeatureWebRTC, DisabledCommands: cfg.CommandsDisabled, Channel: connectionLimits(cfg)}
	deployment := endpoint.Deployment{Version: opts.Version, Features: features}
	capabilities, err := deployment.Capabilities()
	if err != nil {
		return nil, err
	}
	endpoints := &endpoint.Service{Store: db, Cache: endpointCache, Announce: kv, Deployment: deployment, Now: time.Now}

	iceServers, err := cfg.ICEServerList()
	if err != nil {
		return nil, err
	}
	channels := redisstore.NewChannels(kv, channelLimits(cfg))
	sessions := &session.Service{
		Store:     db,
		Endpoints: endpoints,
		Tokens:    session.NewTokens(secrets),
		Failures:  failures,
		Channels:  channels,
		WebRTC:    cfg.FeatureWebRTC,
		ICE:       session.ICEConfig{Servers: iceServers, Secret: cfg.TURNSecret},
		Limits:    features.Channel,
		Now:       time.Now,
	}
	refusals := audit.NewRefusals(db, a.log, time.Now)
	sweeper := session.NewSweeper(sessions, cfg.SessionIdleTimeout, cfg.SessionRetention, a.log)
	actions := session.NewActionQueue(db, cfg.EnablePIILogging, a.log, a.telemetry.Registry)
	reportStream := redisstore.NewReportStream(kv)
	reporter := usage.NewReporter(reportStream, a.log, a.telemetry.Registry)
	consumer := usage.NewConsumer(reportStream, db, a.log, a.telemetry.Registry, time.Now)
	providers, err := speechProviders(ctx, cfg)
	if err != nil {
		return nil, err
	}
	speechDeps := speech.Deps{
		Store: db, Leases: redisstore.NewLeases(kv), Reporter: reporter, Endpoints: endpoints,
		Providers: providers, Retries: cfg.SpeechRetries, TeamShare: cfg.TeamShare, Log: a.log, Registry: a.telemetry.Registry, Now: time.Now,
	}
	var mediaReader httpapi.MediaReader
	if a.media != nil {
		speechDeps.Blobs, mediaReader = a.media, a.media
		cleaner := speech.NewCleaner(db, a.media, redisstore.NewLeases(kv), cfg.MediaCacheRetention, a.log, a.telemetry.Registry, time.Now)
		a.jobs = append(a.jobs, cleaner.Run)
	}
	a.speech = speech.NewService(speechDeps)
	a.onClose(a.speech.Close)

	connections := channel.NewService(channels, struct {
		*session.Service
		*session.Sweeper
		*session.ActionQueue
	}{sessions, sweeper, actions}, features.Channel, a.log, a.telemetry.Registry)
	a.onClose(connections.Close)

	runtimes, err := runtimeapi.New(runtimeapi.Deps{
		Calls: func() (*calls.Runtime, error) {
			return calls.New(calls.Options{Store: kv.ClientOption(), Name: opts.Version, Lease: runtimeapi.Lease, Limits: channelLimits(cfg), MinReplicas: cfg.KVMinReplicas})
		},
		Secret: cfg.JWTSecret, Instance: rand.Text(), TeamShare: cfg.TeamShare, Log: a.log, Registry: a.telemetry.Registry,
	})
	if err != nil {
		return nil, err
	}

	var forwarded httpapi.Instances
	if opts.Instances > 0 {
		a.instances = newInstances(opts.Instances, opts.InstanceCommand, a.log)
		a.onClose(a.instances.close)
		forwarded = a.instances
	}
	a.server = httpapi.New(httpapi.Deps{
		Log:            a.log,
		Registry:       a.telemetry.Registry,
		Tracing:        a.telemetry.TracerProvider,
		Now:            time.Now,
		APIAccess:      cfg.FeatureAPIAccess,
		MaxSockets:     cfg.MaxConnections,
		TeamShare:      cfg.TeamShare,
		PublicURL:      cfg.PublicURL,
		TrustedProxies: cfg.TrustedProxies,
		ConsoleOrigins: cfg.ConsoleOrigins,
		MetricsToken:   cfg.MetricsToken,
		OpenAPI:        api.OpenAPI,
		AsyncAPI:       api.AsyncAPI,
		Health:         a.Health,
		Draining:       a.draining.Load,
		Auth:           authenticator,
		Limits:         limiter,
		Teams:          teams,
		Admin: httpapi.Admin{
			Teams:    &team.Registry{Store: db, Announce: kv, Now: time.Now},
			Keys:     &auth.KeyRegistry{Store: db, Announce: kv, Now: time.Now},
			Limits:   limits,
			Quotas:   kv,
			Audit:    db,
			Refusals: refusals,
		},
		Endpoints:    endpoints,
		Capabilities: capabilities,
		Usage:        &usage.Service{Store: db, Now: time.Now},
		Sessions:     sessions,
		Channels:     connections,
		Runtimes:     runtimes,
		Speech:       a.speech,
		Media:        mediaReader,
		Callbacks:    callback.NewService(redisstore.NewCallbacks(kv), connections, platform, a.log, a.telemetry.Registry, time.Now, cfg.TeamShare),
		AnyOrigin:    opts.Development,
		Playground:   a.playground(),
		Instances:    forwarded,
	})

	probes := []*probe{
		{name: "database", label: "database", failedStatus: statusUnavailable, ping: db.Ready},
		{name: "kv", label: "key-value store", failedStatus: statusUnavailable, ping: kv.Ping},
	}
	if a.media != nil {
		probes = append(probes, &probe{name: "media", label: "media service", failedStatus: statusDegraded, ping: a.media.Ping})
	}
	a.addProbes(probes...)
	a.addFullGauge(kv.Full)
	a.jobs = append(a.jobs,
		func(ctx context.Context) { _ = db.Connect(ctx) }, // retries and logs until ctx ends
		authenticator.Run,
		auth.NewSecretMonitor(kv, secrets, a.log, a.telemetry.Registry).Run,
		limits.Run,
		connections.Run,
		collectLessOften,
		func(ctx context.Context) { releaseMemory(ctx, releaseInterval) },
		func(ctx context.Context) { kv.Subscribe(ctx, authenticator, teams, endpointCache, limits, sweeper) },
	)
	if a.demo != nil {
		a.jobs = append(a.jobs, a.runDemo)
	}
	if cfg.FeatureAPIAccess {
		a.jobs = append(a.jobs, runtimes.Run, sweeper.Run, actions.Run, reporter.Run, consumer.Run, refusals.Run,
			audit.NewCleaner(db, redisstore.NewLeases(kv), cfg.AuditRetention, a.log, time.Now).Run)
	}
	return a, nil
}

// Run serves until ctx ends, shuts down gracefully and closes everything New opened.
func (a *App) Run(ctx context.Context) error {
	defer a.close()
	a.log.InfoContext(ctx, "telapi is listening",
		"version", a.version, "url", a.URL(), "jwt_fingerprint", a.cfg.JWTSecret.Fingerprint(),
		"api_access", a.cfg.FeatureAPIAccess, "webrtc", a.cfg.FeatureWebRTC)
	return a.serve(ctx,
		func() error { return a.server.Serve(a.listener) },
		a.drain,
		func(ctx context.Context) error {
			err := a.server.Shutdown(ctx, min(a.cfg.ReconnectJitter, a.cfg.ShutdownTimeout/4))
			a.speech.Close() // before the jobs end: one of them sends the last usage reports of speech
			return err
		})
}

// drain makes /health return 503.
func (a *App) drain() {
	a.draining.Store(true)
	if a.demo != nil {
		a.demo.stop()
	}
	if a.instances != nil {
		a.instances.shutDown()
	}
}

// Address returns the address at which the server listens.
func (a *App) Address() string { return a.listener.Addr().String() }

// URL returns the base URL of this instance for clients on the same machine.
func (a *App) URL() string { return a.cfg.LocalURL(a.address().Port) }

// Routes returns the registered routes.
func (a *App) Routes() []httpapi.Route { return a.server.Routes() }

// PlatformPolicy returns the command policy that applies to all gateway profiles. Its
// errors are config.Problems, like those of config.Load.
func PlatformPolicy(cfg config.Config) (command.PlatformPolicy, error) {
	platform, err := command.NewPlatformPolicy(cfg.CommandsDisabled, cfg.TransferTargets, cfg.TransferHeaders)
	if err == nil {
		return platform, nil
	}
	var problems config.Problems
	issues, _ := fault.From(err).Details.([]fault.Issue)
	for _, issue := range issues {
		name, values := "TRANSFER_ALLOWED_TARGETS", cfg.TransferTargets
		switch {
		case strings.HasPrefix(issue.Path, "/disabled/"):
			name, values = "COMMANDS_DISABLED", cfg.CommandsDisabled
		case strings.HasPrefix(issue.Path, "/headers/"):
			name, values = "TRANSFER_ALLOWED_HEADERS", cfg.TransferHeaders
		}
		problems = append(problems, config.Problem{Name: name, Value: strconv.Quote(strings.Join(values, ",")), Text: issue.Message})
	}
	return platform, problems
}

// connectionLimits returns the limits of a browser's connection.
func connectionLimits(cfg config.Config) channel.Limits {
	return channel.Limits{
		FrameBytes:          int64(cfg.MaxFrameBytes),
		QueuedBytes:         int64(cfg.MaxQueuedBytes),
		FramesPerSecond:     cfg.FramesPerSecond,
		AudioBytesPerSecond: cfg.AudioBytesPerSecond,
		HistoryMessages:     cfg.HistoryMessages,
		HistorySeconds:      int(cfg.HistoryTime.Seconds()),
		PingIntervalMs:      cfg.PingInterval.Milliseconds(),
		ReconnectJitter:     cfg.ReconnectJitter,
		HandshakesPerMinute: cfg.HandshakesPerMinute,
	}
}

// channelLimits returns the limits of a channel in the key-value store.
func channelLimits(cfg config.Config) wire.ChannelLimits {
	limits := wire.DefaultChannelLimits()
	limits.HistoryMessages, limits.HistoryMs = int64(cfg.HistoryMessages), cfg.HistoryTime.Milliseconds()
	return limits
}

// AddDevelopmentSpeech makes telapi dev speak with espeak-ng if it is installed and
// SPEECH_PROVIDERS is not set.
func AddDevelopmentSpeech(cfg *config.Config) {
	if _, err := exec.LookPath("espeak-ng"); err == nil && !cfg.IsSet("SPEECH_PROVIDERS") {
		cfg.SpeechProviders = append([]string{"espeak"}, cfg.SpeechProviders...)
	}
}

// speechProviders returns the providers in SPEECH_PROVIDERS, in that order.
func speechProviders(ctx context.Context, cfg config.Config) (providers []speech.Provider, err error) {
	timeout := speech.ProviderTimeout(cfg.SpeechTimeout, len(cfg.SpeechProviders))
	for _, name := range cfg.SpeechProviders {
		var p speech.Provider
		switch name {
		case "openai":
			p = synth.NewOpenAI(synth.OpenAIOptions{
				URL: cfg.SpeechURL, Key: cfg.SpeechKey, Voice: cfg.SpeechVoice, Model: cfg.SpeechModel, Timeout: timeout,
			})
		case "espeak":
			if p, err = synth.NewEspeak(ctx, cfg.EspeakVoice, timeout); err != nil {
				return nil, fmt.Errorf("SPEECH_PROVIDERS, SPEECH_ESPEAK_VOICE: %w", err)
			}
		case "tone":
			p = synth.Tone{}
		}
		providers = append(providers, p)
	}
	return providers, nil
}
