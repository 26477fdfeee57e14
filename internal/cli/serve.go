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
		Use:   "serve",
		Short: "Run the API server",
		Long: `Runs the API server until SIGTERM or Ctrl-C and then shuts down gracefully: /health returns
503, running requests finish within SHUTDOWN_TIMEOUT, and the process exits. It exits up to
eight seconds later if a store or the collector hangs. A second signal exits immediately.

JWT_SECRET is required. Without DATABASE_URL and REDIS_URL the server uses SQLite and an
embedded key-value store in DATA_DIR, for a single instance.`,
		RunE: c.run(func(ctx context.Context, _ []string) error {
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
	cmd := &cobra.Command{Use: "migrate", Short: "Apply pending database migrations",
		Long: `Applies pending migrations. 'serve' and 'dev' also do this at start, and concurrent runs are
safe. Run it before you roll out an upgrade.`}
	statusOnly := cmd.Flags().Bool("status", false, "only list pending migrations")
	cmd.RunE = c.withConfig(func(ctx context.Context, _ []string) error {
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
		Use:   "media",
		Short: "Run the media service, a private cache of synthesized speech",
		Long: `Stores audio at /media/<shard>/<name>.alaw or .pcm and serves it with range and conditional
requests until SIGTERM or Ctrl-C. Only one instance can use a MEDIA_ROOT.

  MEDIA_PORT              port, default 3002; 0 selects a free port
  MEDIA_ROOT              directory of the files, default: media in DATA_DIR
  MEDIA_UPLOAD_TOKEN      bearer token required for PUT and DELETE; GET needs none
  MEDIA_TLS_CERT_FILE     with MEDIA_TLS_KEY_FILE: serve HTTPS, which telapi serve requires;
                          a renewed certificate is reloaded
  MEDIA_MAX_BYTES         maximum total size; the least recently used files are deleted

Try it:

  MEDIA_PORT=3002 MEDIA_HOST=127.0.0.1 telapi media
  curl -T hello.pcm http://127.0.0.1:3002/media/ab/hello.pcm       # 201, or 204 if replaced
  curl -r 0-99 http://127.0.0.1:3002/media/ab/hello.pcm            # the first 100 bytes
  curl 'http://127.0.0.1:3002/media?limit=10'                      # list files
  curl -X DELETE http://127.0.0.1:3002/media/ab/hello.pcm

API servers use it if TTS_MEDIA_CACHE_BASE_URL is set. telapi dev runs its own.`,
		RunE: c.run(func(ctx context.Context, _ []string) error {
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
	cmd := &cobra.Command{Use: "gc [--dry-run]", Short: "Clean up the media cache now",
		Long: `Removes expired speech, blobs without a database row for an hour, and rows without a blob,
from the database and the media service at TTS_MEDIA_CACHE_BASE_URL. Servers also do this:
one of them removes expired speech every minute and the rest every hour.`}
	dryRun := cmd.Flags().Bool("dry-run", false, "only list what would be removed")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) error {
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
