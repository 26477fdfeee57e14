package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/config"
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
