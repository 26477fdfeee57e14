package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/config"
	"telapi/internal/demo"
)

func (c *cli) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "serve",
		GroupID: groupRun,
		Short:   "Run the API server",
		Long: `Runs the API server until SIGTERM or Ctrl-C, then drains: /health answers 503,
requests in flight finish, and the process ends within SHUTDOWN_TIMEOUT. A second
signal ends it at once.

JWT_SECRET is required. Without DATABASE_URL and REDIS_URL it runs on SQLite and an
embedded key-value store under DATA_DIR, which is good for one machine.`,
		Args: cobra.NoArgs,
		RunE: c.work(func(ctx context.Context, _ []string) error {
			cfg, warnings, err := config.Load(c.Env, config.Serve)
			if err != nil {
				return err
			}
			a, err := app.New(ctx, cfg, c.options(warnings))
			if err != nil {
				return err
			}
			return a.Run(ctx)
		}),
	}
}

func (c *cli) options(warnings []config.Warning) app.Options {
	return app.Options{Version: version, Log: c.Err, Warnings: warnings}
}

const (
	// devShutdown bounds the drain of a development server, whose user waits
	// at the prompt.
	devShutdown = 10 * time.Second
	devReady    = 30 * time.Second
)

func (c *cli) devCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "dev",
		GroupID: groupRun,
		Short:   "Run everything on embedded stores, with a demo team to try it",
		Long: `Runs the service with nothing to set up: SQLite and an embedded key-value store
under DATA_DIR, a demo team with one endpoint, and a demo key with every scope.
A media service runs beside it on MEDIA_PORT, unless TTS_MEDIA_CACHE_BASE_URL names one.
It honours every configuration name; TELAPI_PORT=0 and MEDIA_PORT=0 pick free ports.`,
		Args: cobra.NoArgs,
		RunE: c.work(func(ctx context.Context, _ []string) (err error) {
			cfg, warnings, err := config.Load(c.Env, config.Dev)
			if err != nil {
				return err
			}
			if !cfg.IsSet("DRAIN_DELAY") {
				cfg.DrainDelay = 0
			}
			if !cfg.IsSet("PLAYGROUND_ENABLED") {
				cfg.Playground = true
			}
			cfg.ShutdownTimeout = min(cfg.ShutdownTimeout, devShutdown)
			opts := c.options(warnings)
			opts.Development = true
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
			welcomed := c.welcome(ctx, a, cfg)
			if welcomed != nil && ctx.Err() == nil {
				stop()
				return errors.Join(welcomed, <-ran)
			}
			return <-ran
		}),
	}
}

// welcome seeds the demo team once the stores are there, and says what to try.
func (c *cli) welcome(ctx context.Context, a *app.App, cfg config.Config) error {
	ready, cancel := context.WithTimeout(ctx, devReady)
	defer cancel()
	if err := a.Ready(ready); err != nil {
		return fmt.Errorf("wait for the stores: %w", err)
	}
	office := a.Office()
	d, err := demo.Seed(ctx, cfg.DataDir, office.Teams, office.Endpoints, office.Keys)
	if err != nil {
		return fmt.Errorf("seed the demo team: %w", err)
	}
	return c.print(struct {
		URL        string `json:"url"`
		MediaURL   string `json:"mediaUrl"`
		Key        string `json:"key"`
		TeamID     string `json:"teamId"`
		EndpointID string `json:"endpointId"`
	}{a.URL(), cfg.MediaCacheURL, d.Key.Reveal(), d.TeamID, d.EndpointID}, func(w io.Writer) {
		_, _ = fmt.Fprintf(w, `
telapi %s is up, for development.

  API        %s
  Demo key   %s
  Team       %s
  Endpoint   %s
  Media      %s

  Try        curl -H 'X-API-Key: %s' %s/api/v1/endpoints
  Then       %s --help

Ctrl-C ends it.

`, version, a.URL(), d.Key.Reveal(), d.TeamID, d.EndpointID, cfg.MediaCacheURL, d.Key.Reveal(), a.URL(), c.again(cfg))
	})
}

// again is how this program is called from another terminal, on the same data.
func (c *cli) again(cfg config.Config) string {
	if cfg.IsSet("DATA_DIR") {
		return "DATA_DIR=" + cfg.DataDir + " " + c.Program
	}
	return c.Program
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		GroupID: groupLook,
		Short:   "Print the version",
		Args:    cobra.NoArgs,
		RunE: c.work(func(context.Context, []string) error {
			return c.print(map[string]string{"version": version}, func(w io.Writer) {
				_, _ = fmt.Fprintln(w, "telapi", version)
			})
		}),
	}
}

func (c *cli) configCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "config",
		GroupID: groupLook,
		Short:   "Print the effective configuration, secrets masked",
		Args:    cobra.NoArgs,
		RunE: c.work(func(context.Context, []string) error {
			cfg, err := c.configure()
			if err != nil {
				return err
			}
			same := func(s config.Setting) config.Setting { return s }
			return table(c, cfg.Effective(), same, []string{"NAME", "VALUE", "FROM"}, func(s config.Setting) []string {
				return []string{s.Name, s.Value, string(s.Source)}
			})
		}),
	}
}
