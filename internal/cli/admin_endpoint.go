package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/endpoint"
)

// endpointView is an endpoint as the command line shows it.
type endpointView struct {
	ID             string              `json:"id"`
	TeamID         string              `json:"teamId"`
	Name           string              `json:"name"`
	Enabled        bool                `json:"enabled"`
	Modes          []endpoint.Mode     `json:"modes"`
	Origins        []string            `json:"origins"`
	GatewayProfile wire.GatewayProfile `json:"gatewayProfile"`
	CreatedAt      *time.Time          `json:"createdAt"`
	UpdatedAt      *time.Time          `json:"updatedAt"`
}

func viewEndpoint(e endpoint.Endpoint) endpointView {
	return endpointView{e.ID, e.TeamID, e.Name, e.Enabled, e.Modes, e.Origins, e.Profile, moment(e.CreatedAt), moment(e.UpdatedAt)}
}

func (c *cli) printEndpoint(e endpoint.Endpoint) error {
	v := viewEndpoint(e)
	profile, err := json.Marshal(v.GatewayProfile, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("print endpoint: %w", err)
	}
	return c.print(v, fields("id", v.ID, "team", v.TeamID, "name", v.Name, "enabled", strconv.FormatBool(v.Enabled),
		"modes", joined(v.Modes), "origins", strings.Join(v.Origins, " "), "profile", string(profile)))
}

func (c *cli) endpointCommand() *cobra.Command {
	return group("endpoint", "Endpoints: a team's entries into a flow",
		c.endpointCreateCommand(),
		c.endpointListCommand(),
		&cobra.Command{Use: "show ID", Short: "Show an endpoint", Args: cobra.ExactArgs(1),
			RunE: answer(c, c.printEndpoint, func(ctx context.Context, o *app.Office, args []string) (endpoint.Endpoint, error) {
				return o.Endpoints.Show(ctx, args[0])
			})},
		c.endpointUpdateCommand(),
	)
}

// endpointFlags are what create and update share.
type endpointFlags struct {
	name, profile  string
	modes, origins []string
}

func (f *endpointFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.name, "name", "", "its name")
	cmd.Flags().StringArrayVar(&f.modes, "mode", nil, "webrtc, audio or chat (repeatable)")
	cmd.Flags().StringArrayVar(&f.origins, "origin", nil, "a web origin that may open its sockets, such as https://shop.example (repeatable)")
	cmd.Flags().StringVar(&f.profile, "profile", "", "JSON file with its gatewayProfile")
}

// apply does what the given flags ask for; a flag that was not given changes nothing.
func (f *endpointFlags) apply(cmd *cobra.Command, e *endpoint.Endpoint) error {
	given := cmd.Flags().Changed
	if given("name") {
		e.Name = f.name
	}
	if given("mode") {
		e.Modes = words[endpoint.Mode](f.modes)
	}
	if given("origin") {
		e.Origins = f.origins
	}
	if given("profile") {
		raw, err := os.ReadFile(f.profile)
		if err != nil {
			return fmt.Errorf("read profile: %w", err)
		}
		if e.Profile, err = endpoint.ParseProfile(raw); err != nil {
			return fmt.Errorf("%s: %w", f.profile, err)
		}
	}
	return nil
}

func (c *cli) endpointCreateCommand() *cobra.Command {
	var flags endpointFlags
	var teamID string
	cmd := &cobra.Command{Use: "create --team TEAM --name NAME --mode MODE…", Short: "Create an endpoint", Args: cobra.NoArgs,
		Example: "  telapi endpoint create --team tm_… --name Shop --mode chat --mode webrtc --origin https://shop.example"}
	flags.register(cmd)
	cmd.Flags().StringVar(&teamID, "team", "", "the team's id")
	for _, name := range []string{"team", "name", "mode"} {
		must(cmd.MarkFlagRequired(name))
	}
	cmd.RunE = answer(c, c.printEndpoint, func(ctx context.Context, o *app.Office, _ []string) (endpoint.Endpoint, error) {
		e := endpoint.Endpoint{TeamID: teamID}
		if err := flags.apply(cmd, &e); err != nil {
			return endpoint.Endpoint{}, err
		}
		if _, err := o.Teams.Show(ctx, teamID); err != nil {
			return endpoint.Endpoint{}, err
		}
		return o.Endpoints.Create(ctx, e)
	})
	return cmd
}

func (c *cli) endpointUpdateCommand() *cobra.Command {
	var flags endpointFlags
	var enabled bool
	cmd := &cobra.Command{Use: "update ID", Short: "Change an endpoint; what is not given stays", Args: cobra.ExactArgs(1),
		Example: "  telapi endpoint update ep_… --enabled=false"}
	flags.register(cmd)
	cmd.Flags().BoolVar(&enabled, "enabled", true, "whether sessions may be opened on it")
	cmd.RunE = answer(c, c.printEndpoint, func(ctx context.Context, o *app.Office, args []string) (endpoint.Endpoint, error) {
		return o.Endpoints.Update(ctx, args[0], func(e *endpoint.Endpoint) error {
			if cmd.Flags().Changed("enabled") {
				e.Enabled = enabled
			}
			return flags.apply(cmd, e)
		})
	})
	return cmd
}

func (c *cli) endpointListCommand() *cobra.Command {
	var teamID string
	cmd := &cobra.Command{Use: "list [--team TEAM]", Short: "List endpoints", Args: cobra.NoArgs,
		RunE: c.office(func(ctx context.Context, o *app.Office, _ []string) error {
			endpoints, err := o.Endpoints.List(ctx, teamID)
			if err != nil {
				return err
			}
			return table(c, endpoints, viewEndpoint, []string{"ID", "TEAM", "ENABLED", "MODES", "NAME"}, func(v endpointView) []string {
				return []string{v.ID, v.TeamID, strconv.FormatBool(v.Enabled), joined(v.Modes), v.Name}
			})
		})}
	cmd.Flags().StringVar(&teamID, "team", "", "only this team's")
	return cmd
}
