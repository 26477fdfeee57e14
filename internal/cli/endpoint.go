package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/endpoint"
)

func (c *cli) endpointCommand() *cobra.Command {
	list := &cobra.Command{Use: "list [--team TEAM]", Short: "List endpoints"}
	teamID := list.Flags().String("team", "", "list only this team's endpoints")
	list.RunE = c.show(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		endpoints, err := a.Endpoints.List(ctx, *teamID)
		return newTable(endpoints, identity, "id", "teamId", "enabled", "modes", "name"), err
	})
	return group("endpoint", "Manage endpoints, through which sessions enter a flow",
		c.endpointCreateCommand(),
		list,
		&cobra.Command{Use: "show ID", Short: "Show an endpoint",
			RunE: c.show(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				return a.Endpoints.Store.Endpoint(ctx, args[0])
			})},
		c.endpointUpdateCommand(),
	)
}

// endpointFlags adds the flags shared by create and update. The returned function
// reads the profile and returns a function that applies the flags that are set.
func (c *cli) endpointFlags(cmd *cobra.Command) func(context.Context) (func(*endpoint.Endpoint), error) {
	f := cmd.Flags()
	name := f.String("name", "", "name of the endpoint")
	modes := f.StringArray("mode", nil, "allowed session mode: webrtc, audio or chat (repeatable)")
	origins := f.StringArray("origin", nil, "web origin that may open sockets, such as https://shop.example (repeatable)")
	profileFile := f.String("profile", "", "JSON file with the gateway profile")
	return func(ctx context.Context) (_ func(*endpoint.Endpoint), err error) {
		var profile wire.GatewayProfile
		if f.Changed("profile") {
			profile, err = c.readProfile(ctx, *profileFile)
		}
		return func(e *endpoint.Endpoint) {
			if f.Changed("name") {
				e.Name = *name
			}
			if f.Changed("mode") {
				e.Modes = convert[endpoint.Mode](*modes)
			}
			if f.Changed("origin") {
				e.Origins = *origins
			}
			if f.Changed("profile") {
				e.Profile = profile
			}
		}, err
	}
}

func (c *cli) readProfile(ctx context.Context, file string) (profile wire.GatewayProfile, err error) {
	raw, err := c.readFile(ctx, file)
	if err != nil {
		return profile, fmt.Errorf("read profile: %w", err)
	}
	if profile, err = endpoint.ParseProfile(raw); err != nil {
		return profile, fmt.Errorf("%s: %w", file, err)
	}
	return profile, nil
}

func (c *cli) endpointCreateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "create --team TEAM --name NAME --mode MODE…", Short: "Create an endpoint",
		Example: "  telapi endpoint create --team tm_… --name Shop --mode chat --mode webrtc --origin https://shop.example"}
	readFlags := c.endpointFlags(cmd)
	teamID := cmd.Flags().String("team", "", "team ID")
	require(cmd, "team", "name", "mode")
	cmd.RunE = c.show(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		apply, err := readFlags(ctx)
		if err != nil {
			return nil, err
		}
		e := endpoint.Endpoint{TeamID: *teamID}
		apply(&e)
		if _, err := a.Teams.Store.Team(ctx, *teamID); err != nil {
			return nil, err
		}
		return a.Endpoints.Create(ctx, e)
	})
	return cmd
}

func (c *cli) endpointUpdateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "update ID", Short: "Change an endpoint; flags that are not set change nothing",
		Example: "  telapi endpoint update ep_… --enabled=false"}
	readFlags := c.endpointFlags(cmd)
	enabled := cmd.Flags().Bool("enabled", true, "whether sessions can be created")
	cmd.RunE = c.show(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		apply, err := readFlags(ctx)
		if err != nil {
			return nil, err
		}
		return a.Endpoints.Update(ctx, args[0], func(e *endpoint.Endpoint) {
			if cmd.Flags().Changed("enabled") {
				e.Enabled = *enabled
			}
			apply(e)
		})
	})
	return cmd
}
