package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"telapi/callruntime"
	"telapi/internal/app"
	"telapi/internal/config"
)

type runE = func(*cobra.Command, []string) error

// run wraps a command's body. Errors of the body are not usage errors.
func (c *cli) run(body func(ctx context.Context, args []string) error) runE {
	return func(cmd *cobra.Command, args []string) error {
		c.running = true
		return body(cmd.Context(), args)
	}
}

// withConfig loads the configuration of a command that is not a server.
func (c *cli) withConfig(body func(ctx context.Context, args []string) error) runE {
	return c.run(func(ctx context.Context, args []string) error {
		cfg, warnings, err := config.Load(c.Env, config.Tool)
		for _, w := range warnings {
			_, _ = fmt.Fprintln(c.Err, "warning:", w)
		}
		if err != nil {
			return err
		}
		c.cfg = cfg
		return body(ctx, args)
	})
}

// withAdmin opens the stores.
func (c *cli) withAdmin(body func(ctx context.Context, a *app.Admin, args []string) error) runE {
	return c.withConfig(func(ctx context.Context, args []string) error {
		a, err := app.OpenAdmin(ctx, c.cfg, c.Err)
		if err != nil {
			return err
		}
		defer a.Close()
		return body(ctx, a, args)
	})
}

// show is withAdmin for a body that returns a result to print.
func (c *cli) show(body func(ctx context.Context, a *app.Admin, args []string) (any, error)) runE {
	return c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) error {
		result, err := body(ctx, a, args)
		if err != nil {
			return err
		}
		return c.print(result)
	})
}

// withRuntime opens the key-value store as a call runtime.
func (c *cli) withRuntime(body func(ctx context.Context, r *callruntime.Runtime, args []string) error) runE {
	return c.withConfig(func(ctx context.Context, args []string) error {
		r, err := app.OpenRuntime(c.cfg)
		if err != nil {
			return err
		}
		defer r.Close()
		err = body(ctx, r, args)
		if errors.Is(err, callruntime.ErrLost) {
			return fmt.Errorf("%w: %s", err, howChannelsOpen)
		}
		return err
	})
}

const howChannelsOpen = "a session's channel is opened when its browser connects; open one without a session with telapi channel open"

// readFile reads a file, or standard input if name is "-". Reading from a terminal
// is abandoned when ctx ends.
func (c *cli) readFile(ctx context.Context, name string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	var content []byte
	done := make(chan error, 1)
	go func() {
		var err error
		content, err = io.ReadAll(c.In)
		done <- err
	}()
	select {
	case err := <-done:
		return content, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
