// Package cli implements the telapi command. It parses flags and configuration,
// calls package app, and prints results for people or, with --json, for programs.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"telapi/internal/config"
	"telapi/internal/fault"
)

// version is set by the build.
var version = "0.9.18"

// Console is the environment of the process.
type Console struct {
	Program string // as it was invoked
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
	running bool // the command line is valid; later errors are not usage errors
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
	return exitFailed
}

// errReported is returned by commands that have already printed the failure.
var errReported = errors.New("already reported")

const (
	groupRun     = "run"
	groupAdmin   = "admin"
	groupInspect = "inspect"
)

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "telapi",
		Short: "Connects browsers, call runtimes and asynchronous bots",
		Long: `telapi connects the browsers, call runtimes and bot providers of a voice-bot platform.

Try it with embedded stores and a demo team:    telapi dev
Run it in production:                           telapi serve
Find out what is wrong:                         telapi doctor

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
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return flagError(err) })
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON to stdout, one object per line")
	for _, g := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{groupRun, "Run:", []*cobra.Command{c.serveCommand(), c.devCommand(), c.mediaCommand(), c.migrateCommand()}},
		{groupAdmin, "Administer (also while the server is running):", []*cobra.Command{
			c.teamCommand(), c.keyCommand(), c.endpointCommand(), c.limitsCommand(), c.quotaCommand(), c.channelCommand(), c.callbackCommand(), c.speechCommand(),
		}},
		{groupInspect, "Inspect:", []*cobra.Command{c.usageCommand(), c.healthCommand(), c.doctorCommand(), c.configCommand(), c.versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.id
			root.AddCommand(cmd)
			for _, leaf := range slices.Concat(cmd.Commands(), []*cobra.Command{cmd}) {
				if leaf.Args == nil {
					leaf.Args = positionalArgs
				}
			}
		}
	}
	return root
}

// positionalArgs checks the number of arguments against the command's Use line:
// its upper-case words before the first flag.
func positionalArgs(cmd *cobra.Command, args []string) error {
	names := strings.Fields(cmd.Use)[1:]
	if end := slices.IndexFunc(names, func(name string) bool { return name[0] == '-' || name[0] == '[' }); end >= 0 {
		names = names[:end]
	}
	switch {
	case len(args) < len(names):
		return fmt.Errorf("missing argument %s", names[len(args)])
	case len(args) > len(names):
		return fmt.Errorf("unexpected argument %q", args[len(names)])
	}
	return nil
}

// flagError replaces the parser's text for an invalid value.
func flagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	use := map[string]string{"duration": "a duration such as 60s or 1m", "int64": "an integer", "bool": "true or false"}[invalid.GetFlag().Value.Type()]
	return fmt.Errorf("invalid --%s %q: use %s", invalid.GetFlag().Name, invalid.GetValue(), use)
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

// require marks flags as required.
func require(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag does not exist
		}
	}
}

// usageError returns an error in the command line that only the command can detect.
func (c *cli) usageError(format string, args ...any) error {
	c.running = false
	return fmt.Errorf(format, args...)
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
	if at := strings.LastIndex(list, ", "); at >= 0 {
		list = list[:at] + " or " + list[at+2:]
	}
	return list
}

// printError prints an error with everything needed to fix it.
func (c *cli) printError(err error) {
	var failure *fault.Error
	if !errors.As(err, &failure) || failure.Code == fault.Internal {
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
