package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/strictjson"
	"telapi/internal/team"
)

// endpointMembers maps the JSON Pointers of an endpoint's members to their flags.
var endpointMembers = map[string]string{"/name": "--name", "/modes": "--mode", "/origins": "--origin"}

func (c *cli) endpointCommand() *cobra.Command {
	list := &cobra.Command{Use: "list [--team TEAM]", Short: "List endpoints"}
	list.RunE = c.withTeams(list, "list only this team's endpoints", func(ctx context.Context, a *app.Admin, teams page.Teams) (any, error) {
		endpoints, err := a.Endpoints.Store.Endpoints(ctx, teams, page.All)
		return newTable(endpoints, "id", "teamId", "enabled", "modes", "name"), err
	})
	return group("endpoint", "Manage endpoints, the configurations for conversations",
		c.endpointCreateCommand(),
		list,
		&cobra.Command{Use: "show ID", Short: "Show an endpoint",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				e, err := a.Endpoints.Store.Endpoint(ctx, args[0])
				return e, withID(err, "endpoint", args[0])
			})},
		c.endpointUpdateCommand(),
		&cobra.Command{Use: "delete ID", Short: "Delete an endpoint and end its sessions",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				err := a.Endpoints.Delete(ctx, args[0], func(team.Endpoint) error { return nil }) // of any team
				return map[string]string{"id": args[0], "state": "deleted"}, withID(err, "endpoint", args[0])
			})},
	)
}

// endpointFlags adds the flags that create and update share. The command calls
// readProfile, and then apply to change an endpoint as the flags say.
func (c *cli) endpointFlags(cmd *cobra.Command) (readProfile func(context.Context) error, apply func(*team.Endpoint)) {
	f := cmd.Flags()
	name := f.String("name", "", "name of the endpoint")
	modes := f.StringArray("mode", nil, "allowed session mode: webrtc, audio or chat (repeatable)")
	oneOf(cmd, "mode", team.Modes)
	origins := f.StringArray("origin", nil, "web origin that may open sockets, such as https://shop.example (repeatable)")
	profileFile := f.String("profile", "", "JSON file with the gateway profile")
	c.addStrictFlag(cmd)
	var profile wire.GatewayProfile
	readProfile = func(ctx context.Context) (err error) {
		if f.Changed("profile") {
			profile, err = c.readProfile(ctx, *profileFile)
		}
		return err
	}
	apply = func(e *team.Endpoint) {
		if f.Changed("name") {
			e.Name = *name
		}
		if f.Changed("mode") {
			e.Modes = convert[team.Mode](*modes)
		}
		if f.Changed("origin") {
			e.Origins = *origins
		}
		if f.Changed("profile") {
			e.Profile = profile
		}
	}
	return readProfile, apply
}

func (c *cli) endpointCreateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "create --team TEAM --name NAME --mode MODE…", Short: "Create an endpoint",
		Example: "  telapi endpoint create --team tm_… --name Shop --mode chat --mode webrtc --origin https://shop.example"}
	readProfile, apply := c.endpointFlags(cmd)
	teamID := cmd.Flags().String("team", "", "team ID")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		if err := readProfile(ctx); err != nil {
			return nil, err
		}
		e := team.Endpoint{TeamID: *teamID, Enabled: true}
		apply(&e)
		if _, err := a.Teams.Store.Team(ctx, *teamID); err != nil {
			return nil, withID(err, "team", *teamID)
		}
		e, err := a.Endpoints.Create(ctx, e)
		return e, withFlags(cmd, err, endpointMembers)
	})
	return cmd
}

func (c *cli) endpointUpdateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "update ID", Short: "Change an endpoint; flags that are not set change nothing",
		Example: "  telapi endpoint update ep_… --enabled=false"}
	readProfile, apply := c.endpointFlags(cmd)
	enabled := cmd.Flags().Bool("enabled", true, "whether sessions can be created")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		if err := readProfile(ctx); err != nil {
			return nil, err
		}
		e, err := a.Endpoints.Update(ctx, args[0], func(e *team.Endpoint) error {
			if cmd.Flags().Changed("enabled") {
				e.Enabled = *enabled
			}
			apply(e)
			return nil
		})
		return e, withFlags(cmd, withID(err, "endpoint", args[0]), endpointMembers)
	})
	return cmd
}

// addStrictFlag adds the flag --strict.
func (c *cli) addStrictFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.strict, "strict", false, "fail if a member has no effect, for example because its name is misspelled")
}

// checkWarnings prints the warnings about a file. With --strict, they are an error.
func (c *cli) checkWarnings(file string, warnings []strictjson.Warning) error {
	for _, w := range warnings {
		c.printWarning("%s: %s", file, printable(w.String()))
	}
	if c.strict && len(warnings) > 0 {
		return fmt.Errorf("%s: warnings are errors with --strict", file)
	}
	return nil
}

// readProfile reads a gateway profile and warns about members that have no effect.
func (c *cli) readProfile(ctx context.Context, file string) (profile wire.GatewayProfile, err error) {
	raw, err := c.readFile(ctx, file)
	if err != nil {
		return profile, err
	}
	if profile, err = team.ParseProfile(raw); err != nil {
		return profile, inFile(file, raw, err)
	}
	return profile, c.checkWarnings(file, command.LintProfile(raw, ""))
}

// inFile adds the file to an error in its content, and the line of a syntax error.
func inFile(file string, content []byte, err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return fmt.Errorf("%s: %w", file, err)
	}
	before := content[:min(int(syntax.ByteOffset), len(content))]
	line, column := 1+bytes.Count(before, []byte("\n")), len(before)-bytes.LastIndexByte(before, '\n')
	problem := "syntax error"
	if errors.Is(err, jsontext.ErrDuplicateName) {
		problem = "duplicate name"
	}
	return fault.New(fault.Validation, "%s is not valid JSON: %s at line %d, column %d", file, problem, line, column)
}
