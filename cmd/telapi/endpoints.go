package main

import (
	"context"

	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/page"
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
				return deleted(args[0]), withID(err, "endpoint", args[0])
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
	strict := strictFlag(cmd)
	var profile wire.GatewayProfile
	readProfile = func(ctx context.Context) (err error) {
		if f.Changed("profile") {
			profile, err = c.readProfile(ctx, *profileFile, *strict)
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

// deleted is the result of a command that deletes something.
func deleted(id string) any {
	return struct {
		ID    string `json:"id"`
		State string `json:"state"`
	}{id, "deleted"}
}
