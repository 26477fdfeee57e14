package cli

import (
	"context"

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
	return &cobra.Command{Use: "version", GroupID: groupLook, Short: "Print the version", Args: cobra.NoArgs,
		RunE: c.work(func(context.Context, []string) error { return c.print(map[string]string{"version": version}) })}
}

func (c *cli) configCommand() *cobra.Command {
	return &cobra.Command{Use: "config", GroupID: groupLook, Short: "Print the effective configuration, secrets masked", Args: cobra.NoArgs,
		RunE: c.tool(func(context.Context, []string) error {
			return c.print(tableOf(c.cfg.Effective(), itself, "name", "value", "source"))
		})}
}

func (c *cli) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "migrate",
		GroupID: groupRun,
		Short:   "Bring the database schema up to date",
		Long: `Applies pending migrations. 'serve' and 'dev' do the same at start; several at once are
safe. Use it to migrate before an upgrade is rolled out.`,
		Args: cobra.NoArgs,
	}
	statusOnly := cmd.Flags().Bool("status", false, "only show what is pending")
	cmd.RunE = c.tool(func(ctx context.Context, _ []string) error {
		status, err := app.Migrate(ctx, c.cfg, c.Err, *statusOnly)
		if err != nil {
			return err
		}
		return c.print(status)
	})
	return cmd
}
