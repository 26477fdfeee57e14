package main

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

  telapi media
  curl -T hello.pcm http://127.0.0.1:3002/media/ab/hello.pcm       # 201, or 204 if replaced
  curl -r 0-99 http://127.0.0.1:3002/media/ab/hello.pcm            # the first 100 bytes
  curl 'http://127.0.0.1:3002/media?limit=10'                      # list files
  curl -X DELETE http://127.0.0.1:3002/media/ab/hello.pcm

API servers use it if TTS_MEDIA_CACHE_BASE_URL is set. telapi dev runs its own.`,
		RunE: serve(c, config.Tool, app.NewMedia), // what the other modes require is for the API server
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
