// Package app assembles the service from configuration, adapters and domain. New does so in
// five steps, each of which sets fields of httpapi.Deps that later steps use.
package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os/exec"
	"sync/atomic"
	"time"

	"telapi/api"
	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/cache"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/command"
	"telapi/internal/config"
	"telapi/internal/httpapi"
	"telapi/internal/media"
	"telapi/internal/ratelimit"
	"telapi/internal/redisstore"
	"telapi/internal/runtimeapi"
	"telapi/internal/session"
	"telapi/internal/speech"
	"telapi/internal/team"
)

// Options are the settings of a process that are not part of its configuration.
type Options struct {
	Version     string
	Log         io.Writer
	Warnings    []config.Warning // logged at start
	Development *Development     // nil in production
}

// Development marks a process of telapi dev: pages of any origin may open sockets.
type Development struct {
	Demo *Demo // nil in an instance, which the process with the demo starts
}

// Demo is the demo team with what runs for it.
type Demo struct {
	Bot *Bot // answers for the demo runtime; nil: neither runs
	// Instances is the number of instances that serve the API behind this process. With 0, this
	// process serves the API. Command returns the command of an instance, which prints its
	// address when it is ready and shuts down when its input ends.
	Instances int
	Command   func(context.Context) *exec.Cmd
}

// Bot is the demo bot if URL is empty, or the user's bot on this machine.
type Bot struct{ URL string }

// App is the API server. New binds its port; Run serves until its context ends.
type App struct {
	process
	opts      Options
	started   time.Time
	platform  command.PlatformPolicy
	secrets   auth.Secrets
	failures  *auth.TokenFailures
	stores    stores
	media     *media.Client // nil if not configured
	probes    []*probe
	speech    *speech.Service
	runtimes  *runtimeapi.Service
	server    *httpapi.Server
	draining  atomic.Bool
	demo      *demoState // nil in production, and in an instance
	instances *instances // serve the API; nil: this process does
}

// New assembles the server. If it fails, it closes everything it opened. Otherwise
// Run closes it.
func New(ctx context.Context, cfg config.Config, opts Options) (_ *App, err error) {
	a := &App{process: process{cfg: cfg}, opts: opts, started: time.Now()}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	if a.platform, err = PlatformPolicy(cfg); err != nil {
		return nil, err
	}
	if opts.Development != nil && opts.Development.Demo != nil {
		a.demo = newDemoState(ctx, opts.Development.Demo)
	}
	var deps httpapi.Deps
	for _, assemble := range []func(context.Context, *httpapi.Deps) error{
		a.listenAndOpenStores, a.assembleIdentity, a.assembleConversations, a.assembleSpeech, a.assembleServer,
	} {
		if err := assemble(ctx, &deps); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// listenAndOpenStores binds the port, starts telemetry and opens the stores.
func (a *App) listenAndOpenStores(ctx context.Context, deps *httpapi.Deps) (err error) {
	if a.listener, err = listenAPI(ctx, a.cfg); err != nil {
		return err
	}
	a.onClose(func() { _ = a.listener.Close() }) // if New fails; Shutdown closes it earlier
	if err := a.startTelemetry(ctx, a.opts); err != nil {
		return err
	}
	a.onClose(a.stores.close)
	open := a.stores.openForServer
	if a.opts.Development != nil && a.demo == nil { // this is an instance
		open = a.stores.join
	}
	if err := open(a.cfg, a.log); err != nil {
		return err
	}
	if a.media, err = openMedia(a.cfg); err != nil {
		return err
	}
	probes := []*probe{
		{name: "database", label: "database", failedStatus: statusUnavailable, ping: a.stores.sql.Ready},
		{name: "kv", label: "key-value store", failedStatus: statusUnavailable, ping: a.stores.kv.Ping},
	}
	if a.media != nil {
		a.onClose(a.media.Close)
		deps.Media = a.media
		probes = append(probes, &probe{name: "media", label: "media service", failedStatus: statusDegraded, ping: a.media.Ping})
	}
	a.addProbes(probes...)
	a.addFullGauge(a.stores.kv.Full)
	a.addJobs(func(ctx context.Context) { _ = a.stores.sql.Connect(ctx) }) // retries and logs until ctx ends
	return nil
}

// assembleIdentity adds who may do what: credentials, teams, endpoints and limits.
func (a *App) assembleIdentity(_ context.Context, deps *httpapi.Deps) (err error) {
	db, kv, registry := a.stores.sql, a.stores.kv, a.telemetry.Registry
	if a.opts.Development != nil && a.cfg.JWTSecret == "" {
		if a.cfg.JWTSecret, err = developmentSecret(a.cfg.DataDir); err != nil {
			return err
		}
	}
	a.secrets = auth.Secrets{Current: a.cfg.JWTSecret, Previous: a.cfg.JWTPrevious}
	a.failures = auth.NewTokenFailures(registry)
	deps.Auth = auth.NewAuthenticator(db, auth.NewConsoleTokens(a.secrets, a.cfg.JWTMaxAge, time.Now), a.failures, a.log, time.Now)
	deps.Teams = team.NewCatalog(db)
	rateLimits := ratelimit.NewSettings(kv, db, a.log, registry)
	deps.Limits = ratelimit.NewLimiter(kv, rateLimits.Limits, registry)
	deployment := team.Deployment{Version: a.opts.Version, Features: team.Features{
		APIAccess: a.cfg.FeatureAPIAccess, WebRTC: a.cfg.FeatureWebRTC, DisabledCommands: a.cfg.CommandsDisabled, Channel: connectionLimits(a.cfg),
	}}
	if deps.Capabilities, err = deployment.Capabilities(); err != nil {
		return err
	}
	deps.Endpoints = team.NewEndpointCatalog(db, deployment)
	a.onClose(func() { deps.Auth.Close(); deps.Teams.Close(); deps.Endpoints.Close(); deps.Limits.Close() }) // before the stores close
	rejections := audit.NewRejections(db, a.log, time.Now)
	announce := announcer{kv, []cached{deps.Auth, deps.Teams, deps.Endpoints}}
	deps.Admin = httpapi.Admin{
		Teams:     &team.Registry{Store: db, Announcer: announce, Now: time.Now},
		Keys:      &auth.KeyRegistry{Store: db, Announcer: announce, Now: time.Now},
		Endpoints: &team.EndpointRegistry{Store: db, Announcer: announce, Now: time.Now},
		Limits:    rateLimits, Quotas: kv, Audit: db, Rejections: rejections,
	}
	a.addJobs(deps.Auth.Run, auth.NewSecretMonitor(kv, a.secrets, a.log, registry).Run, rateLimits.Run)
	a.addAPIJobs(rejections.Run, func(ctx context.Context) {
		audit.DeleteOld(ctx, db, redisstore.NewLeases(kv), a.cfg.AuditRetention, a.log)
	})
	return nil
}

// sessions implements channel.Sessions.
type sessions struct {
	*session.Service
	*session.Sweeper
	*session.ActionQueue
}

// assembleConversations adds sessions, their channels, call runtimes and callbacks.
func (a *App) assembleConversations(_ context.Context, deps *httpapi.Deps) error {
	db, kv, registry := a.stores.sql, a.stores.kv, a.telemetry.Registry
	channels, limits := redisstore.NewChannels(kv, channelLimits(a.cfg)), connectionLimits(a.cfg)
	deps.Sessions = &session.Service{
		Store: db, Endpoints: deps.Endpoints, Tokens: session.NewTokens(a.secrets), Failures: a.failures, Channels: channels,
		WebRTC: a.cfg.FeatureWebRTC, ICE: session.ICEConfig{Servers: a.cfg.ICEServerList(), Secret: a.cfg.TURNSecret}, Limits: limits, Now: time.Now,
	}
	sweeper := session.NewSweeper(deps.Sessions, a.cfg.SessionIdleTimeout, a.cfg.SessionRetention, a.log)
	actions := session.NewActionQueue(db, a.cfg.EnablePIILogging, a.log, registry)
	deps.Channels = channel.NewService(channels, sessions{deps.Sessions, sweeper, actions}, limits, a.secrets.Current, a.log, registry)
	a.onClose(deps.Channels.Close)
	deps.Runtimes = runtimeapi.New(runtimeapi.Deps{
		Connect: func() (*calls.Runtime, error) { // Name is only a default: each claim has its own
			return calls.New(calls.Options{Store: kv.ClientOption(), Name: a.opts.Version, Lease: runtimeapi.Lease, Limits: channelLimits(a.cfg), MinReplicas: a.cfg.KVMinReplicas})
		},
		Secrets: a.secrets, Instance: rand.Text(), TeamShare: a.cfg.TeamShare, Log: a.log, Registry: registry,
	})
	a.runtimes = deps.Runtimes
	callbacks := redisstore.NewCallbacks(kv)
	deps.Callbacks = callback.NewService(callbacks, deps.Channels, a.platform, a.log, registry, time.Now, a.cfg.TeamShare)
	a.onClose(deps.Callbacks.Close)
	a.onClose(callbacks.SubscribeStreams(deps.Callbacks.StreamNotices())) // unsubscribes before Callbacks closes
	a.addJobs(deps.Channels.Run, func(ctx context.Context) {
		kv.Subscribe(ctx, deps.Auth, deps.Teams, deps.Endpoints, deps.Admin.Limits, sweeper)
	})
	a.addAPIJobs(deps.Runtimes.Run, sweeper.Run, actions.Run)
	return nil
}

// assembleSpeech adds speech, its cache and its usage.
func (a *App) assembleSpeech(ctx context.Context, deps *httpapi.Deps) error {
	db, kv, registry := a.stores.sql, a.stores.kv, a.telemetry.Registry
	reports := redisstore.NewReportStream(kv)
	reporter := speech.NewReporter(reports, a.log, registry)
	providers, err := speechProviders(ctx, a.cfg)
	if err != nil {
		return err
	}
	speechDeps := speech.Deps{
		Store: db, Leases: redisstore.NewLeases(kv), Usage: reporter, Endpoints: deps.Endpoints,
		Providers: providers, Retries: a.cfg.SpeechRetries, TeamShare: a.cfg.TeamShare, Log: a.log, Registry: registry, Now: time.Now,
	}
	if a.media != nil {
		speechDeps.Blobs = a.media
		a.addJobs(speech.NewCleaner(db, a.media, redisstore.NewLeases(kv), a.cfg.MediaCacheRetention, a.log, registry, time.Now).Run)
	}
	a.speech = speech.NewService(speechDeps)
	a.onClose(a.speech.Close) // if New fails; Run closes it earlier
	deps.Speech, deps.Usage = a.speech, db
	a.addAPIJobs(reporter.Run, speech.NewReportConsumer(reports, db, a.log, registry, time.Now).Run)
	return nil
}

// assembleServer adds the settings of the HTTP server and creates it.
func (a *App) assembleServer(ctx context.Context, deps *httpapi.Deps) error {
	if a.demo != nil && a.demo.Instances > 0 {
		a.instances = newInstances(ctx, a.demo.Instances, a.demo.Command, a.log)
		a.onClose(a.instances.close)
		deps.Instances = a.instances
	}
	deps.Log = a.log
	deps.Registry = a.telemetry.Registry
	deps.Tracing = a.telemetry.TracerProvider
	deps.Now = time.Now
	deps.APIAccess = a.cfg.FeatureAPIAccess
	deps.MaxSockets, deps.TeamShare = a.cfg.MaxConnections, a.cfg.TeamShare
	deps.PublicURL, deps.TrustedProxies = a.cfg.PublicURL, a.cfg.TrustedProxies
	deps.MetricsToken = a.cfg.MetricsToken
	deps.ConsoleOrigins = a.cfg.ConsoleOrigins
	deps.AnyOrigin = a.opts.Development != nil
	deps.OpenAPI, deps.AsyncAPI = api.OpenAPI, api.AsyncAPI
	deps.Playground = a.playground()
	deps.Health, deps.Draining = a.Health, a.draining.Load
	a.server = httpapi.New(*deps)
	a.addJobs(func(ctx context.Context) { releaseMemory(ctx, releaseInterval) })
	if a.demo != nil {
		a.addJobs(a.runDemo)
	}
	return nil
}

// addAPIJobs adds jobs that only an instance with FEATURE_API_ACCESS runs.
func (a *App) addAPIJobs(jobs ...func(context.Context)) {
	if a.cfg.FeatureAPIAccess {
		a.addJobs(jobs...)
	}
}

// announcer makes a change take effect in this process at once, and announces it to the
// others.
type announcer struct {
	cache.Announcer
	caches []cached
}

// cached is a cache that drops a value when it gets the message of an announcement.
type cached interface{ Message(topic string) }

// Announce implements cache.Announcer.
func (a announcer) Announce(ctx context.Context, topic string) error {
	for _, c := range a.caches {
		c.Message(topic)
	}
	return a.Announcer.Announce(ctx, topic)
}

// Run serves until ctx ends, shuts down gracefully and closes everything New opened.
func (a *App) Run(ctx context.Context) error {
	defer a.close()
	a.log.InfoContext(ctx, "telapi is listening",
		"version", a.opts.Version, "url", a.URL(), "jwt_fingerprint", a.cfg.JWTSecret.Fingerprint(),
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

// drain makes /health return 503, and stops the demo and the instances while this server
// still serves them.
func (a *App) drain() {
	a.draining.Store(true)
	if a.demo != nil {
		a.demo.stop()
	}
	if a.instances != nil {
		a.instances.shutDown()
	}
}

// URL returns the base URL of this instance for clients on the same machine.
func (a *App) URL() string { return a.cfg.LocalURL(a.Address().Port) }

// Routes returns the registered routes.
func (a *App) Routes() []httpapi.Route { return a.server.Routes() }

// connectionLimits returns the limits of a browser's connection.
func connectionLimits(cfg config.Config) channel.ConnectionLimits {
	return channel.ConnectionLimits{
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

// AddDevelopmentSpeech makes telapi dev prefer espeak-ng to its default provider if it is
// installed and SPEECH_PROVIDERS is not set.
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
			p = media.NewOpenAI(media.OpenAIOptions{
				URL: cfg.SpeechURL, Key: cfg.SpeechKey, Voice: cfg.SpeechVoice, Model: cfg.SpeechModel, Timeout: timeout,
			})
		case "espeak":
			if p, err = media.NewEspeak(ctx, cfg.EspeakVoice, timeout); err != nil {
				return nil, fmt.Errorf("SPEECH_PROVIDERS, SPEECH_ESPEAK_VOICE: %w", err)
			}
		case "tone":
			p = media.Tone{}
		default: // config.Load rejects it
			return nil, fmt.Errorf("SPEECH_PROVIDERS: unknown provider %q", name)
		}
		providers = append(providers, p)
	}
	return providers, nil
}
