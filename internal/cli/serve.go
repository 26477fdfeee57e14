package cli

import (
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

	"telapi/internal/app"
	"telapi/internal/config"
	"telapi/internal/demo"
	"telapi/internal/httpapi"
	"telapi/internal/speech"
)

func (c *cli) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:        "serve",
		Short:      "Run the API server",
		SuggestFor: []string{"start"},
		Long: `Runs the API server until SIGTERM or Ctrl-C and then shuts down gracefully: /health returns
503, running requests finish within SHUTDOWN_TIMEOUT, and the process exits. It exits up to
eight seconds later if a store or the collector hangs. A second signal exits immediately.

JWT_SECRET is required. Without DATABASE_URL and REDIS_URL the server uses SQLite and an
embedded key-value store in DATA_DIR, for a single instance. Its data survives a restart;
a crash can lose the last seconds.`,
		RunE: serve(c, config.Serve, app.New),
	}
}

// serve returns the body of a command that opens a server and runs it until its
// context ends.
func serve[S interface{ Run(context.Context) error }](
	c *cli, mode config.Mode, open func(context.Context, config.Config, app.Options) (S, error),
) runE {
	return c.run(func(ctx context.Context, _ []string) (any, error) {
		cfg, warnings, err := config.Load(c.Env, mode)
		if err != nil {
			return nil, err
		}
		server, err := open(ctx, cfg, app.Options{Version: version, Log: c.Err, Warnings: warnings})
		if err != nil {
			return nil, err
		}
		return nil, server.Run(ctx)
	})
}

func (c *cli) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Apply pending database migrations",
		Long: `Applies pending migrations. 'serve' and 'dev' also do this at start, and concurrent runs are
safe. Run it before you roll out an upgrade.`}
	statusOnly := cmd.Flags().Bool("status", false, "only list pending migrations")
	cmd.RunE = c.withConfig(func(ctx context.Context, _ []string) (any, error) {
		return app.Migrate(ctx, c.cfg, c.Err, *statusOnly)
	})
	return cmd
}

func (c *cli) mediaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "media",
		Short: "Run the media service, a private cache of synthesized speech",
		Long: `Stores audio at /media/<shard>/<name>.alaw or .pcm and serves it with range and conditional
requests until SIGTERM or Ctrl-C. Only one instance can use a MEDIA_ROOT.

It is configured with MEDIA_PORT, MEDIA_ROOT, MEDIA_UPLOAD_TOKEN, MEDIA_TLS_CERT_FILE and
the other MEDIA variables in docs/configuration.md. telapi serve requires HTTPS.

Try it:

  MEDIA_PORT=3002 MEDIA_HOST=127.0.0.1 telapi media
  curl -T hello.pcm http://127.0.0.1:3002/media/ab/hello.pcm       # 201, or 204 if replaced
  curl -r 0-99 http://127.0.0.1:3002/media/ab/hello.pcm            # the first 100 bytes
  curl 'http://127.0.0.1:3002/media?limit=10'                      # list files
  curl -X DELETE http://127.0.0.1:3002/media/ab/hello.pcm

API servers use it if TTS_MEDIA_CACHE_BASE_URL is set. telapi dev runs its own.`,
		RunE: serve(c, config.Tool, app.NewMedia),
	}
	cmd.AddCommand(c.mediaGCCommand())
	return cmd
}

func (c *cli) mediaGCCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "gc [--dry-run]", Short: "Clean up the media cache now",
		Long: `Removes expired speech, blobs that had no database row for an hour, and rows without a blob,
from the database and the media service at TTS_MEDIA_CACHE_BASE_URL. Servers also do this:
one of them removes expired speech every minute, and such blobs and rows every hour.`}
	dryRun := cmd.Flags().Bool("dry-run", false, "only list what would be removed")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		removed := 0
		err := a.CleanMedia(ctx, *dryRun, func(r speech.Removal) {
			removed++
			_ = c.printAs(r, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%-8s %s\n", r.Reason, r.Path) })
		})
		if !c.json && (err == nil || removed > 0) {
			verb := "removed"
			if *dryRun {
				verb = "would be removed"
			}
			_, _ = fmt.Fprintln(c.Out, removed, verb)
		}
		return nil, err
	})
	return cmd
}

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
		if *noDemo && *bot != "" {
			return nil, c.usageError("use either --no-demo or --bot: without the demo, no bot answers")
		}
		if *instances < 1 || *instances > maxInstances {
			return nil, c.usageError("invalid --instances %d: use 1 to %d", *instances, maxInstances)
		}
		if err := c.checkBotURL(*bot); err != nil {
			return nil, err
		}
		cfg, warnings, err := c.devConfig()
		if err != nil {
			return nil, err
		}
		opts := app.Options{Version: version, Log: c.Err, Warnings: warnings, Development: true, DemoBot: !*noDemo, BotURL: *bot}
		if *instances > 1 {
			opts.Instances, opts.InstanceCommand = *instances, func(ctx context.Context) *exec.Cmd { return c.instance(ctx, cfg) }
		}
		if !cfg.IsSet("TTS_MEDIA_CACHE_BASE_URL") {
			stopMedia, mediaErr := startMedia(ctx, &cfg, opts)
			if mediaErr != nil {
				return nil, mediaErr
			}
			defer func() { err = errors.Join(err, stopMedia()) }()
		}
		a, err := app.New(ctx, cfg, opts)
		if err != nil {
			return nil, err
		}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		exited := make(chan error, 1)
		go func() {
			defer stop() // if the server fails, do not wait for the demo team
			exited <- a.Run(ctx)
		}()
		if err := c.printBanner(ctx, a, cfg, opts); err != nil && ctx.Err() == nil {
			stop()
			return nil, errors.Join(err, <-exited)
		}
		return nil, <-exited
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

// checkBotURL accepts bots on this machine: the demo runtime sends them credentials
// and does not verify certificates.
func (c *cli) checkBotURL(bot string) error {
	u, err := url.Parse(bot)
	if bot == "" || err == nil && u.Scheme == "http" && slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, u.Hostname()) {
		return nil
	}
	return c.usageError("invalid --bot %q: use a URL of this machine such as http://127.0.0.1:8080/", bot)
}

// printBanner waits for the demo team and prints how to try the service.
func (c *cli) printBanner(ctx context.Context, a *app.App, cfg config.Config, opts app.Options) error {
	team, err := a.Demo(ctx)
	if err != nil {
		return err
	}
	playground := ""
	if cfg.Playground && cfg.FeatureAPIAccess {
		playground = a.URL() + httpapi.PlaygroundPath
	}
	return c.printAs(struct {
		URL        string `json:"url"`
		Playground string `json:"playground,omitempty"`
		MediaURL   string `json:"mediaUrl"`
		Key        string `json:"key"`
		TeamID     string `json:"teamId"`
		EndpointID string `json:"endpointId"`
		BotURL     string `json:"botUrl,omitempty"`
	}{a.URL(), playground, cfg.MediaCacheURL, team.Key.Reveal(), team.TeamID, team.EndpointID, opts.BotURL}, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "\ntelapi %s is running in development mode.\n\n", version)
		if playground != "" {
			_, _ = fmt.Fprintf(w, "  Playground %s\n  Reference  %s/docs/\n", playground, a.URL())
		}
		_, _ = fmt.Fprintf(w, `  API        %s
  Demo key   %s
  Team       %s
  Endpoint   %s
  Media      %s

  Try        curl -H 'X-API-Key: %s' %s/api/v1/endpoints
  Then       %s --help

`, a.URL(), team.Key.Reveal(), team.TeamID, team.EndpointID, cfg.MediaCacheURL, team.Key.Reveal(), a.URL(), c.commandLine(cfg, a.URL()))
		switch {
		case opts.BotURL != "":
			_, _ = fmt.Fprintf(w, "  Your bot   %s\n  Start one  %s\n\n", opts.BotURL, botCommand(opts.BotURL, a.URL()))
		case opts.DemoBot:
			_, _ = fmt.Fprintln(w, "  Open a session and say to the bot:")
			for _, p := range demo.Phrases() {
				_, _ = fmt.Fprintf(w, "    %-19s %s\n", p.Say, p.Does)
			}
			_, _ = fmt.Fprintln(w)
		}
		_, _ = fmt.Fprint(w, "Press Ctrl-C to stop.\n\n")
	})
}

// botCommand returns the command line that starts a bot at a URL, which accepts
// callbacks to the service. The bot of the examples listens on 127.0.0.1.
func botCommand(bot, service string) string {
	port := "80"
	if u, err := url.Parse(bot); err == nil && u.Port() != "" {
		port = u.Port()
	}
	return fmt.Sprintf("TELAPI_URL=%s PORT=%s node examples/bot-node/bot.mjs", service, port)
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
	mediaConfig.DrainDelay, mediaConfig.ShutdownTimeout = 0, devMediaShutdown // the API server has stopped before
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
