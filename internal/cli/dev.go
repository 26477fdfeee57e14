package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/config"
	"telapi/internal/demo"
	"telapi/internal/httpapi"
)

// Shutdown timeouts in development: the developer waits at the prompt.
const (
	devShutdown      = 10 * time.Second
	devMediaShutdown = 2 * time.Second
)

func (c *cli) devCommand() *cobra.Command {
	dev := &cobra.Command{
		Use:   "dev",
		Short: "Run everything with embedded stores and a demo team",
		Long: `Runs the service without any setup: SQLite and an embedded key-value store in DATA_DIR,
a media service on MEDIA_PORT (unless TTS_MEDIA_CACHE_BASE_URL is set), a demo team with an
endpoint and an API key with all scopes, the playground, and a demo call runtime and bot.
All configuration variables apply; TELAPI_PORT=0 and MEDIA_PORT=0 select free ports.`,
	}
	noDemo := dev.Flags().Bool("no-demo", false, "do not start the demo runtime and bot, so that you can connect your own runtime")
	dev.RunE = c.run(func(ctx context.Context, _ []string) (err error) {
		cfg, warnings, err := config.Load(c.Env, config.Dev)
		if err != nil {
			return err
		}
		if !cfg.IsSet("OTEL_ENABLED") && cfg.OTLPEndpoint == "" {
			cfg.OTelEnabled = false // avoids the warning that nothing is exported
		}
		if _, missing := exec.LookPath("espeak-ng"); missing == nil && !cfg.IsSet("SPEECH_PROVIDERS") {
			cfg.SpeechProviders = append([]string{"espeak"}, cfg.SpeechProviders...)
		}
		cfg.ShutdownTimeout = min(cfg.ShutdownTimeout, devShutdown)
		opts := c.options(warnings)
		opts.Development, opts.NoDemo = true, *noDemo
		if !cfg.IsSet("TTS_MEDIA_CACHE_BASE_URL") {
			stopMedia, failed := startMedia(ctx, &cfg, opts)
			if failed != nil {
				return failed
			}
			defer func() { err = errors.Join(err, stopMedia()) }()
		}
		a, err := app.New(ctx, cfg, opts)
		if err != nil {
			return err
		}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		ran := make(chan error, 1)
		go func() {
			defer stop() // a server that failed ends the wait for the demo team
			ran <- a.Run(ctx)
		}()
		bannerErr := c.printBanner(ctx, a, cfg, *noDemo)
		if bannerErr != nil && ctx.Err() == nil {
			stop()
			return errors.Join(bannerErr, <-ran)
		}
		return <-ran
	})
	return dev
}

// printBanner waits for the demo team and prints how to try the service.
func (c *cli) printBanner(ctx context.Context, a *app.App, cfg config.Config, noDemo bool) error {
	d, err := a.Demo(ctx)
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
	}{a.URL(), playground, cfg.MediaCacheURL, d.Key.Reveal(), d.TeamID, d.EndpointID}, func(w io.Writer) {
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

`, a.URL(), d.Key.Reveal(), d.TeamID, d.EndpointID, cfg.MediaCacheURL, d.Key.Reveal(), a.URL(), c.commandLine(cfg, a.URL()))
		if !noDemo {
			_, _ = fmt.Fprintln(w, "  Open a session and say to the bot:")
			for _, p := range demo.Phrases() {
				_, _ = fmt.Fprintf(w, "    %-19s %s\n", p.Say, p.Does)
			}
			_, _ = fmt.Fprintln(w)
		}
		_, _ = fmt.Fprint(w, "Press Ctrl-C to stop.\n\n")
	})
}

// commandLine returns how to call this program in another terminal for the same
// data and the server at url.
func (c *cli) commandLine(cfg config.Config, url string) string {
	line := c.Program
	if cfg.IsSet("TELAPI_PORT") {
		line = "TELAPI_PORT=" + url[strings.LastIndex(url, ":")+1:] + " " + line
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
	mediaConfig.DrainDelay, mediaConfig.ShutdownTimeout = 0, devMediaShutdown // it stops after the API server
	m, err := app.NewMedia(ctx, mediaConfig, opts)
	if err != nil {
		return nil, err
	}
	cfg.MediaCacheURL = m.URL()
	if cfg.MediaCacheToken == "" {
		cfg.MediaCacheToken = cfg.MediaToken
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ran := make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	return func() error { cancel(); return <-ran }, nil
}
