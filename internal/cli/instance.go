package cli

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/config"
)

// instance returns the command that runs an instance of telapi dev. It has the same
// settings, except that only the process with the given configuration connects to it.
func (c *cli) instance(ctx context.Context, cfg config.Config) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Program, "dev-instance") //nolint:gosec // this program
	cmd.Env = slices.Concat(c.Env, []string{
		"TELAPI_HOST=127.0.0.1", "TELAPI_PORT=0", "API_TLS_ENABLED=false", "TRUSTED_PROXIES=127.0.0.1",
		"TTS_MEDIA_CACHE_BASE_URL=" + cfg.MediaCacheURL, "TTS_MEDIA_CACHE_UPLOAD_TOKEN=" + cfg.MediaCacheToken.Reveal(),
		"TTS_MEDIA_CACHE_UPLOAD_TOKEN_FILE=",
	})
	cmd.Stderr = c.Err
	return cmd
}

// devInstanceCommand runs an instance of telapi dev until its input ends, which is
// when that process stops it or has ended.
func (c *cli) devInstanceCommand() *cobra.Command {
	return &cobra.Command{
		Use: "dev-instance", Short: "Run an instance of telapi dev, which starts it", Hidden: true,
		RunE: c.run(func(ctx context.Context, _ []string) (any, error) {
			cfg, _, err := c.devConfig()
			if err != nil {
				return nil, err
			}
			a, err := app.New(ctx, cfg, app.Options{Version: version, Log: c.Err, Development: true, Join: true})
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
