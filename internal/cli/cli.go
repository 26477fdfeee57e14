// Package cli is the command line: it reads flags and configuration, asks the
// app to do the work, and prints what came of it for people or, with --json,
// for programs.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"telapi/internal/config"
	"telapi/internal/fault"
)

// version is stamped in by the build.
var version = "0.9.18"

// Console is the process's outside: what was typed, and where answers go.
type Console struct {
	Program string // as it was called
	Args    []string
	Env     []string
	In      io.Reader
	Out     io.Writer
	Err     io.Writer
}

// Exit codes that scripts may rely on.
const (
	exitDone   = 0
	exitFailed = 1 // refused or failed; the reason is on stderr
	exitUsage  = 2
)

// cli is one invocation.
type cli struct {
	Console
	cfg     config.Config // of commands that are no server
	json    bool
	running bool // the command line was understood; errors are the work's own
}

// Run carries out one command line and returns the exit code.
func Run(ctx context.Context, console Console) int {
	c := &cli{Console: console}
	root := c.root()
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errReported):
		return exitFailed
	case !c.running:
		_, _ = fmt.Fprintln(c.Err, "telapi:", err)
		if !cmd.HasSubCommands() {
			_, _ = fmt.Fprintln(c.Err, "Usage:", cmd.UseLine())
		}
		_, _ = fmt.Fprintf(c.Err, "See '%s --help'.\n", cmd.CommandPath())
		return exitUsage
	}
	c.complain(err)
	return exitFailed
}

// errReported ends a command that has printed its own account of the failure.
var errReported = errors.New("reported")

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "telapi",
		Short: "The service between browsers, a call runtime and asynchronous bots",
		Long: `telapi joins a voice-bot platform's browsers, call runtime and bot providers.

Try it on embedded stores, with a demo team:    telapi dev
Run it in production (see telapi config):       telapi serve
Ask what is wrong:                              telapi doctor

All configuration comes from environment variables; docs/configuration.md lists them.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetArgs(c.Args)
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	root.SetVersionTemplate("telapi {{.Version}}\n") // as telapi version prints it
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON, one object per line, and nothing else on stdout")
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run it:"},
		&cobra.Group{ID: groupAdmin, Title: "Administer it (works while the server runs):"},
		&cobra.Group{ID: groupLook, Title: "Look at it:"},
	)
	root.AddCommand(
		c.serveCommand(), c.devCommand(), c.mediaCommand(), c.migrateCommand(),
		c.teamCommand(), c.keyCommand(), c.endpointCommand(), c.limitsCommand(), c.quotaCommand(), c.channelCommand(), c.callbackCommand(), c.speechCommand(),
		c.usageCommand(), c.healthCommand(), c.doctorCommand(), c.configCommand(), c.versionCommand(),
	)
	return root
}

const (
	groupRun   = "run"
	groupAdmin = "admin"
	groupLook  = "look"
)

type runE = func(*cobra.Command, []string) error

// work wraps a command's body: from here on errors are the work's, not the
// command line's.
func (c *cli) work(body func(ctx context.Context, args []string) error) runE {
	return func(cmd *cobra.Command, args []string) error {
		c.running = true
		return body(cmd.Context(), args)
	}
}

// usage is the error of a command line that was typed wrongly, where only the
// command itself could see it.
func (c *cli) usage(format string, args ...any) error {
	c.running = false
	return fmt.Errorf(format, args...)
}

// complain prints an error with everything a person needs to mend it.
func (c *cli) complain(err error) {
	var refusal *fault.Error
	if !errors.As(err, &refusal) || refusal.Code == fault.Internal {
		_, _ = fmt.Fprintln(c.Err, "telapi:", err)
		return
	}
	// What was being done, then the public text; the code means nothing at a
	// prompt.
	doing, _, _ := strings.Cut(err.Error(), string(refusal.Code))
	issues, _ := refusal.Details.([]fault.Issue)
	if len(issues) == 0 {
		_, _ = fmt.Fprintf(c.Err, "telapi: %s%s\n", doing, refusal.Message)
	}
	for _, i := range issues {
		_, _ = fmt.Fprintf(c.Err, "telapi: %s%s\n", doing, strings.TrimPrefix(i.String(), "/"))
	}
	if refusal.Cause != nil {
		_, _ = fmt.Fprintf(c.Err, "  (%v)\n", refusal.Cause)
	}
}

// tool is work for a command that is no server, with its configuration loaded
// and the warnings about it passed on.
func (c *cli) tool(body func(ctx context.Context, args []string) error) runE {
	return c.work(func(ctx context.Context, args []string) error {
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

// read takes - for standard input, which may be a terminal: it is given up, and
// left to itself, when ctx is done.
func (c *cli) read(ctx context.Context, name string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	var content []byte
	read := make(chan error, 1)
	go func() {
		var err error
		content, err = io.ReadAll(c.In)
		read <- err
	}()
	select {
	case err := <-read:
		return content, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
