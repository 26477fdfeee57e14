// Command telapi runs and administers the service. It parses flags and configuration,
// calls package app, and prints results for people or, with --json, for programs.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/calls"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/strictjson"
)

// version is set by the build.
var version = "0.9.20"

// Exit codes that scripts rely on.
const (
	exitOK          = 0
	exitFailed      = 1 // the reason is on stderr
	exitUsage       = 2
	exitInterrupted = 130 // by a second signal
)

// cli is one invocation.
type cli struct {
	Program string // name under which it was called
	Args    []string
	Env     []string
	In      io.Reader
	Out     io.Writer
	Err     io.Writer

	cfg        config.Config // set by withConfig
	json       bool
	strict     bool
	validUsage bool // the command line is valid: an error is one of the command's work
}

// execute runs the command and returns the exit code.
func (c *cli) execute(ctx context.Context) int {
	cmd, err := c.root().ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitFailed
	case !c.validUsage:
		c.printUsageError(cmd, err)
		return exitUsage
	}
	c.printError(err)
	if fault.Is(err, fault.Validation) {
		return exitUsage
	}
	return exitFailed
}

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
		Args:          cobra.ArbitraryArgs,
		RunE: func(root *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(root, args[0])
			}
			return root.Help()
		},
	}
	root.SetArgs(c.Args)
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	root.SetVersionTemplate("telapi {{.Version}}\n") // same output as telapi version
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(helpCommand())
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON to stdout, one object per line")
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run:", []*cobra.Command{c.serveCommand(), c.devCommand(), c.devInstanceCommand(), c.mediaCommand(), c.migrateCommand()}},
		{"Administer (also while the server is running):", []*cobra.Command{
			c.teamCommand(), c.keyCommand(), c.endpointCommand(), c.limitsCommand(), c.quotaCommand(),
			c.channelCommand(),
			group("callback", "Test callbacks of providers", c.callbackIssueCommand(), c.callbackLintCommand()),
			group("speech", "Manage speech in the media cache", c.speechWarmCommand()),
		}},
		{"Inspect:", []*cobra.Command{c.usageCommand(), c.auditCommand(), c.healthCommand(), c.doctorCommand(), c.configCommand(), c.versionCommand()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
			for _, each := range append(cmd.Commands(), cmd) {
				requireUse(each)
				c.addCompletion(each)
			}
		}
	}
	root.InitDefaultCompletionCmd()
	completion, _, _ := root.Find([]string{"completion"})
	completion.Args, completion.RunE = cobra.ArbitraryArgs, requireSubcommand // like a group
	return root
}

// runE is the type of cobra.Command.RunE.
type runE = func(*cobra.Command, []string) error

// run returns a RunE function that calls body and prints its result unless that is
// nil. Errors of body are not usage errors.
func (c *cli) run(body func(ctx context.Context, args []string) (any, error)) runE {
	return func(cmd *cobra.Command, args []string) error {
		c.validUsage = true
		result, err := body(cmd.Context(), args)
		if err != nil || result == nil {
			return err
		}
		return c.print(result)
	}
}

// withConfig is like run, for a command that needs the configuration but is not a server.
func (c *cli) withConfig(body func(ctx context.Context, args []string) (any, error)) runE {
	return c.run(func(ctx context.Context, args []string) (_ any, err error) {
		var warnings []config.Warning
		c.cfg, warnings, err = config.Load(c.Env, config.Tool)
		for _, w := range warnings {
			c.printWarning("%s", w)
		}
		if err != nil {
			return nil, err
		}
		return body(ctx, args)
	})
}

// adminBody is the body of a command that needs the stores.
type adminBody = func(ctx context.Context, a *app.Admin, args []string) (any, error)

// withAdmin is like withConfig, for a command that needs existing stores.
func (c *cli) withAdmin(body adminBody) runE { return c.openAdmin(app.Existing, body) }

// withEnsuredDatabase is like withAdmin, for a command that creates the database if there is none.
func (c *cli) withEnsuredDatabase(body adminBody) runE { return c.openAdmin(app.Create, body) }

func (c *cli) openAdmin(mode app.OpenMode, body adminBody) runE {
	return c.withConfig(func(ctx context.Context, args []string) (any, error) {
		a, err := app.OpenAdmin(ctx, c.cfg, c.Err, mode)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		return body(audit.WithActor(ctx, operator().Actor()), a, args)
	})
}

// operator returns the user of the operating system who runs a command. The credentials of the
// stores give access to everything.
func operator() auth.Principal {
	name := strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return auth.Principal{Subject: name, Scopes: auth.Scopes, Type: audit.CLI}
}

// withTeams is like withAdmin, for a list. It adds the flag --team: body gets that team, or all
// teams without the flag.
func (c *cli) withTeams(cmd *cobra.Command, usage string, body func(context.Context, *app.Admin, page.Teams) (any, error)) runE {
	teamID := cmd.Flags().String("team", "", usage)
	return c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		switch {
		case !cmd.Flags().Changed("team"):
			return body(ctx, a, page.OfAllTeams(operator()))
		case *teamID == "": // perhaps an unset variable of a script
			return nil, c.usageError(`invalid --team "": pass a team ID, or omit the flag for all teams`)
		}
		return body(ctx, a, page.OfTeam(*teamID))
	})
}

// withChannel is like withConfig, for a command that acts as a call runtime on a channel. find
// returns the channel's ID.
func (c *cli) withChannel(find func(args []string) string, body func(ctx context.Context, r *calls.Runtime, channelID string) (any, error)) runE {
	return c.withConfig(func(ctx context.Context, args []string) (any, error) {
		channelID := find(args)
		if !wire.ValidID(channelID) {
			return nil, c.usageError("invalid channel ID %q: use 1 to 128 letters, digits and . _ : - (not . or .. alone)", channelID)
		}
		r, err := app.OpenRuntime(c.cfg)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		result, err := body(ctx, r, channelID)
		if errors.Is(err, calls.ErrNotFound) {
			err = fmt.Errorf("channel %s not found: telapi channel list shows the live ones. A session's channel is opened when its browser connects; telapi channel open opens one without a session", channelID)
		}
		return result, err
	})
}

func firstArgument(args []string) string { return args[0] }

// baseURL returns PUBLIC_URL or the URL of the server on this machine.
func (c *cli) baseURL() string {
	return cmp.Or(c.cfg.PublicURL, c.cfg.LocalURL(c.cfg.Port))
}

// readFile reads a file, or standard input if name is "-", without a byte order mark. It
// returns when ctx ends, even if it waits for input from a terminal.
func (c *cli) readFile(ctx context.Context, name string) ([]byte, error) {
	if name != "-" {
		content, err := os.ReadFile(name)
		if failure, ok := errors.AsType[*fs.PathError](err); ok {
			err = fmt.Errorf("cannot read %s: %w", name, failure.Err)
		}
		return strictjson.TrimBOM(content), err
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
		return strictjson.TrimBOM(content), err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// printError prints an error with all its issues and its cause.
func (c *cli) printError(err error) {
	failure, ok := errors.AsType[*fault.Error](err)
	if !ok || failure.Code == fault.Internal {
		c.printProblem("%v", err)
		return
	}
	operation, _, _ := strings.Cut(err.Error(), failure.Error()) // the text that wraps the failure's
	issues, _ := failure.Details.([]fault.Issue)
	for _, i := range issues {
		c.printProblem("%s%s", operation, i)
	}
	if len(issues) > 0 {
		return
	}
	c.printProblem("%s%s", operation, failure.Message)
	if failure.Cause != nil {
		_, _ = fmt.Fprintf(c.Err, "  (%v)\n", failure.Cause)
	}
}
