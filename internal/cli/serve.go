package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/config"
	"telapi/internal/speech"
)

func (c *cli) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "serve",
		GroupID: groupRun,
		Short:   "Run the API server",
		Long: `Runs the API server until SIGTERM or Ctrl-C, then drains: /health answers 503,
requests in flight finish within SHUTDOWN_TIMEOUT, and the process ends; eight seconds
later where a store or the collector hangs. A second signal ends it at once.

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

func (c *cli) migrateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", GroupID: groupRun, Short: "Bring the database schema up to date", Args: cobra.NoArgs,
		Long: `Applies pending migrations. 'serve' and 'dev' do the same at start; several at once are
safe. Use it to migrate before an upgrade is rolled out.`}
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

func (c *cli) mediaCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "media",
		GroupID: groupRun,
		Short:   "Run the media service, the private cache of generated speech",
		Long: `Stores audio under /media/<shard>/<name>.alaw or .pcm and serves it, with ranges and
conditional requests, until SIGTERM or Ctrl-C. One instance owns a MEDIA_ROOT.

  MEDIA_PORT              3002; 0 picks a free one
  MEDIA_ROOT              where the files are kept; media under DATA_DIR if unset
  MEDIA_UPLOAD_TOKEN      what PUT and DELETE must bring as a bearer token; reading is free
  MEDIA_TLS_CERT_FILE     with MEDIA_TLS_KEY_FILE: HTTPS, which telapi serve insists on;
                          a renewed certificate is noticed
  MEDIA_MAX_BYTES         a cap, over which the least recently used files go

Try it:

  MEDIA_PORT=3002 MEDIA_HOST=127.0.0.1 telapi media
  curl -T hello.pcm http://127.0.0.1:3002/media/ab/hello.pcm       # 201, or 204 when replaced
  curl -r 0-99 http://127.0.0.1:3002/media/ab/hello.pcm            # its first 100 bytes
  curl 'http://127.0.0.1:3002/media?limit=10'                      # what is stored
  curl -X DELETE http://127.0.0.1:3002/media/ab/hello.pcm

An API server uses it through TTS_MEDIA_CACHE_BASE_URL; telapi dev runs one by itself.`,
		Args: cobra.NoArgs,
		RunE: c.work(func(ctx context.Context, _ []string) error {
			cfg, warnings, err := config.Load(c.Env, config.Tool)
			if err != nil {
				return err
			}
			m, err := app.NewMedia(ctx, cfg, c.options(warnings))
			if err != nil {
				return err
			}
			return m.Run(ctx)
		}),
	}
	cmd.AddCommand(c.mediaGCCommand())
	return cmd
}

func (c *cli) mediaGCCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "gc [--dry-run]", Short: "Clean up the media cache now", Args: cobra.NoArgs,
		Long: `Removes expired speech, blobs that no row knows for an hour, and rows whose blobs are gone, from
the media service at TTS_MEDIA_CACHE_BASE_URL and the database. Servers do the same by
themselves: the expired every minute, the rest every hour, one server at a time.`}
	dryRun := cmd.Flags().Bool("dry-run", false, "only tell what would be removed")
	cmd.RunE = c.admin(func(ctx context.Context, a *app.Admin, _ []string) error {
		removed := 0
		err := a.CleanMedia(ctx, *dryRun, func(r speech.Removal) {
			removed++
			_ = c.printAs(r, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%-8s %s\n", r.Reason, r.Path) })
		})
		if !c.json && (err == nil || removed > 0) {
			verb := map[bool]string{false: "removed", true: "would be removed"}[*dryRun]
			_, _ = fmt.Fprintln(c.Out, removed, verb)
		}
		return err
	})
	return cmd
}
