package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"telapi/internal/app"
	"telapi/internal/config"
	"telapi/internal/demo"
	"telapi/internal/httpapi"
)

// Shutdown timeouts in development. They are short, because the developer waits at
// the prompt.
const (
	devShutdown      = 10 * time.Second
	devMediaShutdown = 2 * time.Second
)

const maxInstances = 8 // of telapi dev

func (c *cli) devCommand() *cobra.Command {
	dev := &cobra.Command{
		Use:        "dev",
		Short:      "Run everything with embedded stores and a demo team",
		SuggestFor: []string{"run", "start", "up"},
		Long: `Runs the service without any setup: SQLite and an embedded key-value store in DATA_DIR,
a media service on MEDIA_PORT (unless TTS_MEDIA_CACHE_BASE_URL is set), a demo team with an
endpoint and an API key with all scopes, the playground, and a demo call runtime and bot.
It is reachable from this machine only; TELAPI_HOST=0.0.0.0 changes that. Conversations,
key and secret are kept in DATA_DIR, so that open pages resume when you start it again.
With --instances 2, two processes serve the API behind this one. Kill one in the
playground and go on talking.
All configuration variables apply; TELAPI_PORT=0 and MEDIA_PORT=0 select free ports.`,
	}
	noDemo := dev.Flags().Bool("no-demo", false, "do not start the demo runtime and bot, so that you can connect your own runtime")
	instances := dev.Flags().Int("instances", 1, "number of processes that serve the API, up to 8; with 1, this process does")
	bot := dev.Flags().String("bot", "", "URL of your bot on this machine, such as http://127.0.0.1:8080/; it answers instead of the demo bot")
	dev.RunE = c.run(func(ctx context.Context, _ []string) (_ any, err error) {
		switch {
		case *noDemo && *bot != "":
			return nil, c.usageError("use either --no-demo or --bot: without the demo, no bot answers")
		case *instances < 1 || *instances > maxInstances:
			return nil, c.usageError("invalid --instances %d: use 1 to %d", *instances, maxInstances)
		case *bot != "" && !isLocalURL(*bot):
			return nil, c.usageError("invalid --bot %q: use a URL of this machine such as http://127.0.0.1:8080/", *bot)
		}
		cfg, warnings, err := c.devConfig()
		if err != nil {
			return nil, err
		}
		setup := &app.Demo{}
		if !*noDemo && cfg.FeatureAPIAccess {
			setup.Bot = &app.Bot{URL: *bot}
		}
		opts := app.Options{Version: version, Log: c.Err, Warnings: warnings, Development: &app.Development{Demo: setup}}
		if !cfg.IsSet("TTS_MEDIA_CACHE_BASE_URL") {
			stopMedia, mediaErr := startMedia(ctx, &cfg, opts)
			if mediaErr != nil {
				return nil, mediaErr
			}
			defer func() { err = errors.Join(err, stopMedia()) }()
		}
		if *instances > 1 {
			setup.Instances = *instances
			setup.Command = func(ctx context.Context) *exec.Cmd { return c.instanceCommand(ctx, cfg) }
		}
		a, err := app.New(ctx, cfg, opts)
		if err != nil {
			return nil, err
		}
		tasks, ctx := errgroup.WithContext(ctx)
		tasks.Go(func() error { return a.Run(ctx) })
		tasks.Go(func() error {
			if err := c.printBanner(ctx, a, cfg, setup.Bot); ctx.Err() == nil {
				return err // an error stops the server
			}
			return nil // the server ended before the demo was ready
		})
		return nil, tasks.Wait()
	})
	return dev
}

// devConfig returns the configuration of telapi dev and its instances.
func (c *cli) devConfig() (config.Config, []config.Warning, error) {
	cfg, warnings, err := config.Load(c.Env, config.Dev)
	if err != nil {
		return cfg, nil, err
	}
	if !cfg.IsSet("OTEL_ENABLED") && cfg.OTLP() == (config.OTLPEndpoints{}) {
		cfg.OTelEnabled = false // avoids the message that nothing is exported
	}
	app.AddDevelopmentSpeech(&cfg)
	cfg.ShutdownTimeout = min(cfg.ShutdownTimeout, devShutdown)
	return cfg, warnings, nil
}

// isLocalURL reports whether a bot is on this machine: the demo runtime sends it credentials
// and does not verify certificates.
func isLocalURL(bot string) bool {
	u, err := url.Parse(bot)
	return err == nil && u.Scheme == "http" && slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, u.Hostname())
}

// printBanner waits for the demo team and prints how to try the service. bot is nil if none
// answers.
func (c *cli) printBanner(ctx context.Context, a *app.App, cfg config.Config, bot *app.Bot) error {
	resources, err := a.Demo(ctx)
	if err != nil {
		return err
	}
	playground, botURL := "", ""
	if bot != nil {
		botURL = bot.URL
	}
	if cfg.Playground && cfg.FeatureAPIAccess {
		playground = a.URL() + httpapi.PlaygroundPath
	}
	try := fmt.Sprintf("curl -H 'X-API-Key: %s' %s/api/v1/endpoints", resources.Key.Reveal(), a.URL())
	if !cfg.FeatureAPIAccess {
		try = "curl " + a.URL() + "/health"
	}
	return c.printAs(struct {
		URL        string `json:"url"`
		Playground string `json:"playground,omitempty"`
		MediaURL   string `json:"mediaUrl"`
		Key        string `json:"key"`
		TeamID     string `json:"teamId"`
		EndpointID string `json:"endpointId"`
		BotURL     string `json:"botUrl,omitempty"`
	}{a.URL(), playground, cfg.MediaCacheURL, resources.Key.Reveal(), resources.TeamID, resources.EndpointID, botURL}, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "\ntelapi %s is running in development mode.\n\n", version)
		if playground != "" {
			_, _ = fmt.Fprintf(w, "  Playground %s\n  Reference  %s/docs/\n", playground, a.URL())
		}
		_, _ = fmt.Fprintf(w, `  API        %s
  Demo key   %s
  Team       %s
  Endpoint   %s
  Media      %s

  Try        %s
  Then       %s --help

`, a.URL(), resources.Key.Reveal(), resources.TeamID, resources.EndpointID, cfg.MediaCacheURL, try, c.commandLine(cfg, a.URL()))
		switch {
		case !cfg.FeatureAPIAccess:
			_, _ = fmt.Fprint(w, "  Runtime    none: with FEATURE_API_ACCESS=false, the service only accepts callbacks\n\n")
		case bot == nil:
			_, _ = fmt.Fprintf(w, "  Runtime    none: sessions wait until you start one\n  Start one  TELAPI_URL=%s TELAPI_KEY=%s go -C examples/runtime-go run ./echo\n\n", a.URL(), resources.Key.Reveal())
		case botURL != "":
			_, _ = fmt.Fprintf(w, "  Your bot   %s\n  Start one  %s\n\n", botURL, botCommand(botURL, a.URL()))
		default:
			first := "Open a session and say to the bot:"
			if playground != "" {
				first = "Open the playground, press Chat and say:"
			}
			_, _ = fmt.Fprintln(w, "  "+first)
			for _, p := range demo.Phrases() {
				_, _ = fmt.Fprintf(w, "    %-19s %s\n", p.Say, p.Does)
			}
			_, _ = fmt.Fprintln(w)
		}
		_, _ = fmt.Fprint(w, "Press Ctrl-C to stop.\n\n")
	})
}

// botCommand returns the command line that starts a bot at a URL. The bot posts its
// answers only to the service. The bot of the examples listens on 127.0.0.1.
func botCommand(bot, service string) string {
	u, _ := url.Parse(bot) // isLocalURL has parsed it
	return fmt.Sprintf("TELAPI_URL=%s PORT=%s node examples/bot-node/bot.mjs", service, cmp.Or(u.Port(), "80"))
}

// commandLine returns the command line that calls this program in another terminal
// with the same data directory, host and port.
func (c *cli) commandLine(cfg config.Config, url string) string {
	line := c.Program
	if cfg.IsSet("TELAPI_PORT") {
		line = "TELAPI_PORT=" + url[strings.LastIndex(url, ":")+1:] + " " + line
	}
	if cfg.IsSet("TELAPI_HOST") {
		line = "TELAPI_HOST=" + cfg.Host + " " + line
	}
	if cfg.IsSet("DATA_DIR") {
		line = "DATA_DIR='" + strings.ReplaceAll(cfg.DataDir, "'", `'\''`) + "' " + line
	}
	return line
}

// startMedia starts a media service in this process and configures the API server
// to use it.
func startMedia(ctx context.Context, cfg *config.Config, opts app.Options) (stop func() error, err error) {
	opts.Warnings = nil // the API server logs them
	mediaConfig := *cfg
	mediaConfig.DrainDelay, mediaConfig.ShutdownTimeout = 0, devMediaShutdown // it stops after the API server, its only client
	m, err := app.NewMedia(ctx, mediaConfig, opts)
	if err != nil {
		return nil, err
	}
	cfg.MediaCacheURL = m.URL()
	if cfg.MediaCacheToken == "" {
		cfg.MediaCacheToken = cfg.MediaToken
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	exited := make(chan error, 1)
	go func() { exited <- m.Run(ctx) }()
	return func() error { cancel(); return <-exited }, nil
}

// instanceCommand returns the command that runs an instance behind this process. It has
// the same settings, but serves plain HTTP on a free port of this machine.
func (c *cli) instanceCommand(ctx context.Context, cfg config.Config) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Program, "dev-instance") //nolint:gosec // this program
	cmd.Env = slices.Concat(c.Env, []string{
		"TELAPI_HOST=127.0.0.1", "TELAPI_PORT=0", "API_TLS_ENABLED=false", "TRUSTED_PROXIES=127.0.0.1",
		"TTS_MEDIA_CACHE_BASE_URL=" + cfg.MediaCacheURL, "TTS_MEDIA_CACHE_UPLOAD_TOKEN=" + cfg.MediaCacheToken.Reveal(),
		"TTS_MEDIA_CACHE_UPLOAD_TOKEN_FILE=", // the file and the token exclude each other
	})
	cmd.Stderr = c.Err
	return cmd
}

// devInstanceCommand runs an instance behind a process of telapi dev. It prints its address when
// it is ready. It shuts down when its input ends: when telapi dev stops it, or has ended.
func (c *cli) devInstanceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "dev-instance", Short: "Run an instance of telapi dev, which starts it", Hidden: true,
		RunE: c.run(func(ctx context.Context, _ []string) (any, error) {
			cfg, _, err := c.devConfig()
			if err != nil {
				return nil, err
			}
			a, err := app.New(ctx, cfg, app.Options{Version: version, Log: c.Err, Development: &app.Development{}})
			if err != nil {
				return nil, err
			}
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			go func() {
				_, _ = io.Copy(io.Discard, c.In)
				stop()
			}()
			go func() {
				if a.WaitForStores(ctx) == nil {
					_, _ = fmt.Fprintln(c.Out, a.Address())
				}
			}()
			return nil, a.Run(ctx)
		}),
	}
}
