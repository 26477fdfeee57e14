// Package cli implements the telapi command. It parses flags and configuration,
// calls package app, and prints results for people or, with --json, for programs.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/audit"
	"telapi/internal/config"
	"telapi/internal/fault"
)

// version is set by the build.
var version = "0.9.18"

// Console is the environment of the process.
type Console struct {
	Program string // name under which it was called
	Args    []string
	Env     []string
	In      io.Reader
	Out     io.Writer
	Err     io.Writer
}

// Exit codes that scripts rely on.
const (
	exitOK     = 0
	exitFailed = 1 // the reason is on stderr
	exitUsage  = 2
)

// cli is one invocation.
type cli struct {
	Console
	cfg     config.Config // set by withConfig
	json    bool
	running bool // the command line is valid, so errors are not usage errors
}

// Run executes one command line and returns the exit code.
func Run(ctx context.Context, console Console) int {
	c := &cli{Console: console}
	cmd, err := c.root().ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
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
	c.printError(err)
	if fault.Is(err, fault.Validation) {
		return exitUsage
	}
	return exitFailed
}

// Commands returns the command tree, for documentation.
func Commands() *cobra.Command { return (&cli{}).root() }

// errReported is returned by commands that have already printed the failure.
var errReported = errors.New("already reported")

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "telapi",
		Short: "Connects browsers, call runtimes and asynchronous bots",
		Long: `telapi connects the browsers, call runtimes and bot providers of a voice-bot platform.

Try it with embedded stores and a demo team:    telapi dev
Run it in production:                           telapi serve
Diagnose problems:                              telapi doctor

Configure it with environment variables; see docs/configuration.md.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetArgs(c.Args)
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	root.SetVersionTemplate("telapi {{.Version}}\n") // same output as telapi version
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON to stdout, one object per line")
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run:", []*cobra.Command{c.serveCommand(), c.devCommand(), c.mediaCommand(), c.migrateCommand()}},
		{"Administer (also while the server is running):", []*cobra.Command{
			c.teamCommand(), c.keyCommand(), c.endpointCommand(), c.limitsCommand(), c.quotaCommand(),
			group("channel", "List, open, follow and end channels, and send messages",
				c.channelListCommand(), c.channelOpenCommand(), c.channelTailCommand(), c.channelSendCommand(), c.channelEndCommand()),
			group("callback", "Test callbacks of providers", c.callbackIssueCommand(), c.callbackLintCommand()),
			group("speech", "Manage speech in the media cache", c.speechWarmCommand()),
		}},
		{"Inspect:", []*cobra.Command{c.usageCommand(), c.auditCommand(), c.healthCommand(), c.doctorCommand(), c.configCommand(), c.versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
			for _, command := range append(cmd.Commands(), cmd) {
				requireUse(command)
			}
		}
	}
	return root
}

// requireUse makes a command require the arguments and flags of its Use line. Words
// before the first flag are arguments. Flags in brackets are optional.
func requireUse(cmd *cobra.Command) {
	var names []string // of the arguments
	inFlags := false
	for _, word := range strings.Fields(cmd.Use)[1:] {
		inFlags = inFlags || word[0] == '-' || word[0] == '['
		if flag, required := strings.CutPrefix(word, "--"); required {
			if err := cmd.MarkFlagRequired(flag); err != nil {
				panic(err) // the flag does not exist
			}
		} else if !inFlags {
			names = append(names, word)
		}
	}
	if cmd.Args != nil {
		return
	}
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return fmt.Errorf("missing argument %s", names[len(args)])
		case len(args) > len(names):
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		return nil
	}
}

// flagError replaces the parser's text for an invalid value.
func flagError(_ *cobra.Command, err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	hint := map[string]string{"duration": "a duration such as 60s or 1m", "int64": "an integer", "bool": "true or false"}[invalid.GetFlag().Value.Type()]
	return fmt.Errorf("invalid --%s %q: use %s", invalid.GetFlag().Name, invalid.GetValue(), hint)
}

// group returns a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name())
	}
	g := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown subcommand %q: use %s", args[0], orList(names))
			}
			return fmt.Errorf("missing subcommand: use %s", orList(names))
		}}
	g.AddCommand(commands...)
	return g
}

// runE is the type of cobra.Command.RunE.
type runE = func(*cobra.Command, []string) error

// run returns a RunE function that calls body and prints its result unless that is
// nil. Errors of body are not usage errors.
func (c *cli) run(body func(ctx context.Context, args []string) (any, error)) runE {
	return func(cmd *cobra.Command, args []string) error {
		c.running = true
		result, err := body(cmd.Context(), args)
		if err != nil || result == nil {
			return err
		}
		return c.print(result)
	}
}

// withConfig is run for a command that needs the configuration but is not a server.
func (c *cli) withConfig(body func(ctx context.Context, args []string) (any, error)) runE {
	return c.run(func(ctx context.Context, args []string) (_ any, err error) {
		var warnings []config.Warning
		c.cfg, warnings, err = config.Load(c.Env, config.Tool)
		for _, w := range warnings {
			_, _ = fmt.Fprintln(c.Err, "warning:", w)
		}
		if err != nil {
			return nil, err
		}
		return body(ctx, args)
	})
}

// withAdmin is run for a command that needs the stores.
func (c *cli) withAdmin(body func(ctx context.Context, a *app.Admin, args []string) (any, error)) runE {
	return c.withConfig(func(ctx context.Context, args []string) (any, error) {
		a, err := app.OpenAdmin(ctx, c.cfg, c.Err)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		return body(audit.WithActor(ctx, audit.Actor{Type: audit.CLI, ID: userName()}), a, args)
	})
}

// userName returns the name of the operating system's user.
func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// withRuntime is run for a command that acts as a call runtime.
func (c *cli) withRuntime(body func(ctx context.Context, r *callruntime.Runtime, args []string) (any, error)) runE {
	return c.withConfig(func(ctx context.Context, args []string) (any, error) {
		if len(args) > 0 {
			if err := c.checkChannelID(args[0]); err != nil {
				return nil, err
			}
		}
		r, err := app.OpenRuntime(c.cfg)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		result, err := body(ctx, r, args)
		if errors.Is(err, callruntime.ErrNotFound) {
			err = fmt.Errorf("%w: %s", err, howChannelsOpen)
		}
		return result, err
	})
}

// howChannelsOpen is a hint for people whose channel does not exist.
const howChannelsOpen = "a session's channel is opened when its browser connects; open one without a session with telapi channel open"

// readFile reads a file, or standard input if name is "-". It returns when ctx ends,
// even if it waits for input from a terminal.
func (c *cli) readFile(ctx context.Context, name string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	var content []byte
	var err error
	done := make(chan struct{})
	go func() {
		content, err = io.ReadAll(c.In)
		close(done)
	}()
	select {
	case <-done:
		return content, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// usageError returns a usage error that a command's body has detected.
func (c *cli) usageError(format string, args ...any) error {
	c.running = false
	return fmt.Errorf(format, args...)
}

// checkChannelID returns a usage error if a channel ID is invalid.
func (c *cli) checkChannelID(id string) error {
	if wire.ValidID(id) {
		return nil
	}
	return c.usageError("invalid channel ID %q: use 1 to 128 letters, digits and . _ : -", id)
}

// checkFlag returns a usage error if value is not one of the allowed values.
func checkFlag[S ~string](c *cli, name, value string, allowed []S) error {
	if slices.Contains(allowed, S(value)) {
		return nil
	}
	return c.usageError("invalid --%s %q: use %s", name, value, orList(allowed))
}

// orList joins values as in "a, b or c".
func orList[S ~string](values []S) string {
	list := fault.Join(values)
	if comma := strings.LastIndex(list, ", "); comma >= 0 {
		list = list[:comma] + " or " + list[comma+2:]
	}
	return list
}

// printError prints an error with all its issues and its cause.
func (c *cli) printError(err error) {
	failure, ok := errors.AsType[*fault.Error](err)
	if !ok || failure.Code == fault.Internal {
		_, _ = fmt.Fprintln(c.Err, "telapi:", err)
		return
	}
	// Print the operation and the public text without the error code.
	operation, _, _ := strings.Cut(err.Error(), string(failure.Code))
	issues, _ := failure.Details.([]fault.Issue)
	if len(issues) == 0 {
		_, _ = fmt.Fprintf(c.Err, "telapi: %s%s\n", operation, failure.Message)
	}
	for _, i := range issues {
		_, _ = fmt.Fprintf(c.Err, "telapi: %s%s\n", operation, strings.TrimPrefix(i.String(), "/"))
	}
	if failure.Cause != nil {
		_, _ = fmt.Fprintf(c.Err, "  (%v)\n", failure.Cause)
	}
}
