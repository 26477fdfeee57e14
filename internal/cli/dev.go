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
)

// The drain of a development server is bounded: its user waits at the prompt.
const (
	devShutdown      = 10 * time.Second
	devMediaShutdown = 2 * time.Second
)

func (c *cli) devCommand() *cobra.Command {
	var noDemo bool
	dev := &cobra.Command{
		Use:     "dev",
		GroupID: groupRun,
		Short:   "Run everything on embedded stores, with a demo team to try it",
		Long: `Runs the service with nothing to set up: SQLite and an embedded key-value store
under DATA_DIR, a media service on MEDIA_PORT (unless TTS_MEDIA_CACHE_BASE_URL names
one), a demo team with one endpoint and a key with every scope, a page to try it with,
and a call runtime and a bot that talk to whoever opens a session.
It honours every configuration name; TELAPI_PORT=0 and MEDIA_PORT=0 pick free ports.`,
		Args: cobra.NoArgs,
		RunE: c.work(func(ctx context.Context, _ []string) (err error) {
			cfg, warnings, err := config.Load(c.Env, config.Dev)
			if err != nil {
				return err
			}
			if !cfg.IsSet("OTEL_ENABLED") && cfg.OTLPEndpoint == "" {
				cfg.OTelEnabled = false // there is nobody to export to, and no need to say so
			}
			if _, missing := exec.LookPath("espeak-ng"); missing == nil && !cfg.IsSet("SPEECH_PROVIDERS") {
				cfg.SpeechProviders = append([]string{"espeak"}, cfg.SpeechProviders...) // words are nicer than tones
			}
			cfg.ShutdownTimeout = min(cfg.ShutdownTimeout, devShutdown)
			opts := c.options(warnings)
			opts.Development, opts.NoDemo = true, noDemo
			if !cfg.IsSet("TTS_MEDIA_CACHE_BASE_URL") {
				end, failed := beside(ctx, &cfg, opts)
				if failed != nil {
					return failed
				}
				defer func() { err = errors.Join(err, end()) }()
			}
			a, err := app.New(ctx, cfg, opts)
			if err != nil {
				return err
			}
			// A server that cannot be tried ends in order like any other, and one
			// that has ended is not waited for.
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			ran := make(chan error, 1)
			go func() {
				defer stop()
				ran <- a.Run(ctx)
			}()
			welcomed := c.welcome(ctx, a, cfg, noDemo)
			if welcomed != nil && ctx.Err() == nil {
				stop()
				return errors.Join(welcomed, <-ran)
			}
			return <-ran
		}),
	}
	dev.Flags().BoolVar(&noDemo, "no-demo", false, "leave the demo runtime and bot out: sessions wait for a runtime of yours")
	return dev
}

// welcome waits for the demo team, and says what to try.
func (c *cli) welcome(ctx context.Context, a *app.App, cfg config.Config, noDemo bool) error {
	d, err := a.Demo(ctx)
	if err != nil {
		return err
	}
	playground := ""
	if cfg.Playground && cfg.FeatureAPIAccess {
		playground = a.URL() + "/playground/"
	}
	return c.printAs(struct {
		URL        string `json:"url"`
		Playground string `json:"playground,omitempty"`
		MediaURL   string `json:"mediaUrl"`
		Key        string `json:"key"`
		TeamID     string `json:"teamId"`
		EndpointID string `json:"endpointId"`
	}{a.URL(), playground, cfg.MediaCacheURL, d.Key.Reveal(), d.TeamID, d.EndpointID}, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, "\ntelapi %s is up, for development.\n\n", version)
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

`, a.URL(), d.Key.Reveal(), d.TeamID, d.EndpointID, cfg.MediaCacheURL, d.Key.Reveal(), a.URL(), c.again(cfg, a.URL()))
		if !noDemo {
			_, _ = fmt.Fprintln(w, "  Open a session and say to the bot:")
			for _, p := range demo.Phrases() {
				_, _ = fmt.Fprintf(w, "    %-19s %s\n", p.Say, p.Does)
			}
			_, _ = fmt.Fprintln(w)
		}
		_, _ = fmt.Fprint(w, "Ctrl-C ends it.\n\n")
	})
}

// again is how this program is called from another terminal, for the same data
// and the server at url.
func (c *cli) again(cfg config.Config, url string) string {
	call := c.Program
	if cfg.IsSet("TELAPI_PORT") {
		call = "TELAPI_PORT=" + url[strings.LastIndex(url, ":")+1:] + " " + call
	}
	if cfg.IsSet("DATA_DIR") {
		call = "DATA_DIR='" + strings.ReplaceAll(cfg.DataDir, "'", `'\''`) + "' " + call
	}
	return call
}

// beside runs a media service next to the API server of telapi dev and points
// the server's configuration to it. The returned function ends it.
func beside(ctx context.Context, cfg *config.Config, opts app.Options) (end func() error, err error) {
	opts.Warnings = nil // said by the API server
	own := *cfg
	own.DrainDelay, own.ShutdownTimeout = 0, devMediaShutdown // it ends after the API server has
	m, err := app.NewMedia(ctx, own, opts)
	if err != nil {
		return nil, err
	}
	cfg.MediaCacheURL = m.URL()
	if cfg.MediaCacheToken == "" {
		cfg.MediaCacheToken = cfg.MediaToken
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	ran := make(chan error, 1)
	go func() { ran <- m.Run(ctx) }()
	return func() error { stop(); return <-ran }, nil
}
