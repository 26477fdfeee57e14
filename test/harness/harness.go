// Package harness runs the service in tests: in process, as the built binary, or as an
// installation behind a load balancer. Its browsers, callers and runtimes use the service.
// Tests that do not need the service use testkit and stores, which compile faster.
package harness

import (
	"context"
	"crypto/tls"
	"net/http"
	"sync"
	"testing"

	"telapi/internal/app"
	"telapi/internal/config"
	"telapi/internal/httpapi"
	"telapi/test/contract"
	"telapi/test/testkit"
)

// version is the version that instances report.
const version = "0.9.20"

// Secret is the default JWT_SECRET of instances.
const Secret = "a secret that only tests know, and long enough"

// Env is a set of environment variables on top of defaults for tests.
type Env map[string]string

// Instance is one running server.
type Instance struct {
	URL    string
	App    *app.App
	Log    *testkit.Buffer
	Client *http.Client // checks every response against api/openapi.yaml
	TLS    *tls.Config  // of browsers; nil: none

	stop context.CancelFunc
	done chan struct{}
	err  error
}

// Config returns the configuration of an instance with this environment.
func Config(t testing.TB, env Env) config.Config {
	t.Helper()
	return load(t, env, config.Serve)
}

func load(t testing.TB, env Env, mode config.Mode) config.Config {
	t.Helper()
	full := Env{
		"TELAPI_PORT":  "0",
		"JWT_SECRET":   Secret,
		"OTEL_ENABLED": "false",
		"LOG_FORMAT":   "json",
		"DRAIN_DELAY":  "0s",
		// Otherwise an instance takes 5 s to close its sockets.
		"SESSION_RECONNECT_JITTER": "0s",
	}
	if env["DATA_DIR"] == "" {
		full["DATA_DIR"] = t.TempDir()
	}
	for name, value := range env {
		full[name] = value
	}
	var environ []string
	for name, value := range full {
		environ = append(environ, name+"="+value)
	}
	cfg, _, err := config.Load(environ, mode)
	if err != nil {
		t.Fatalf("load configuration: %v", err)
	}
	return cfg
}

// starting is held while an instance starts, which takes a lot of CPU time. If those
// of many parallel tests started at once, conversations of others would time out.
var starting sync.Mutex

// Start runs an instance until the test ends and waits until it is healthy.
func Start(t testing.TB, env Env) *Instance {
	t.Helper()
	starting.Lock()
	defer starting.Unlock()
	return waitHealthy(t, Launch(t, env))
}

// StartDev is Start for a development server, with or without the demo's runtime and bot.
func StartDev(t testing.TB, env Env, demo bool) *Instance {
	t.Helper()
	var bot *app.Bot
	if demo {
		bot = &app.Bot{}
	}
	starting.Lock()
	defer starting.Unlock()
	return waitHealthy(t, launch(t, load(t, env, config.Dev), app.Options{Development: &app.Development{Demo: &app.Demo{Bot: bot}}}))
}

func waitHealthy(t testing.TB, i *Instance) *Instance {
	t.Helper()
	testkit.Until(t, "the instance is healthy", func() bool { return i.App.Health().Status == httpapi.Healthy })
	return i
}

// Launch is Start without the wait, for instances whose stores are unavailable.
func Launch(t testing.TB, env Env) *Instance {
	t.Helper()
	return launch(t, Config(t, env), app.Options{})
}

func launch(t testing.TB, cfg config.Config, opts app.Options) *Instance {
	t.Helper()
	log := &testkit.Buffer{}
	opts.Version, opts.Log = version, log
	a, err := app.New(t.Context(), cfg, opts)
	if err != nil {
		t.Fatalf("create instance: %v", err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	i := &Instance{URL: a.URL(), App: a, Log: log, Client: contract.Client(t), stop: stop, done: make(chan struct{})}
	go func() {
		defer close(i.done)
		i.err = a.Run(ctx)
	}()
	t.Cleanup(func() {
		i.Client.CloseIdleConnections()
		testkit.NoError(t, "instance", i.Stop())
		if t.Failed() {
			t.Logf("log of %s:\n%s", i.URL, log)
		}
	})
	return i
}

// Stop shuts the instance down and returns the result of Run.
func (i *Instance) Stop() error {
	i.stop()
	<-i.done
	return i.err
}
