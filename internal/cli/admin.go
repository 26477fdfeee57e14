package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/team"
)

// teamView returns a team with its effective quota, for output.
func teamView(t team.Team) any {
	return struct {
		team.Team
		Quota int64 `json:"dailyQuota"`
	}{t, t.Quota()}
}

func (c *cli) teamCommand() *cobra.Command {
	update := &cobra.Command{Use: "update ID --name NAME", Short: "Rename a team"}
	name := update.Flags().String("name", "", "new name")
	update.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		t, err := a.Teams.Rename(ctx, args[0], *name)
		return teamView(t), withID(err, "team", args[0])
	})
	return group("team", "Manage teams, which own API keys, endpoints, quota and usage",
		&cobra.Command{Use: "create NAME", Short: "Create a team",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				t, err := a.Teams.Create(ctx, args[0])
				return teamView(t), err
			})},
		&cobra.Command{Use: "list", Short: "List all teams",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
				teams, err := a.Teams.Store.Teams(ctx)
				return newTable(teams, teamView, "id", "name", "dailyQuota"), err
			})},
		&cobra.Command{Use: "show ID", Short: "Show a team", RunE: c.withAdmin(showTeam)},
		update,
	)
}

func showTeam(ctx context.Context, a *app.Admin, args []string) (any, error) {
	t, err := a.Teams.Store.Team(ctx, args[0])
	return teamView(t), withID(err, "team", args[0])
}

func (c *cli) quotaCommand() *cobra.Command {
	return group("quota", "Manage the daily request quota of a team",
		&cobra.Command{Use: "set TEAM N|default", Short: "Set the number of API requests a team may make per UTC day",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				var quota *int64
				if args[1] != "default" {
					n, err := strconv.ParseInt(args[1], 10, 64)
					if err != nil {
						return nil, c.usageError("invalid quota %q: use an integer or default", args[1])
					}
					quota = &n
				}
				t, err := a.Teams.SetQuota(ctx, args[0], quota)
				return teamView(t), withID(err, "team", args[0])
			})},
		&cobra.Command{Use: "show TEAM", Short: "Show a team's quota", RunE: c.withAdmin(showTeam)},
	)
}

func (c *cli) limitsCommand() *cobra.Command {
	return group("limits", "Manage the rate limits per client address, shared by all instances",
		&cobra.Command{Use: "show", Short: "Show the current limits",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
				if err := a.Limits.Reload(ctx); err != nil {
					return nil, err
				}
				return nil, c.printLimits(a)
			})},
		c.limitsSetCommand(),
	)
}

func (c *cli) limitsSetCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "set --tier api|webhook|auth --max N [--window DURATION]",
		Short:   "Change the limit of one tier on all instances within a second",
		Example: "  telapi limits set --tier api --max 600 --window 1m"}
	tierName := cmd.Flags().String("tier", "", "api, webhook or auth")
	maxRequests := cmd.Flags().Int64("max", 0, "requests per window and client address")
	window := cmd.Flags().Duration("window", 0, "length of the window, such as 1m (default: unchanged)")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		if err := checkFlag(c, "tier", *tierName, ratelimit.Tiers); err != nil {
			return nil, err
		}
		tier := ratelimit.Tier(*tierName)
		err := a.Limits.Change(ctx, func(limits ratelimit.Limits) (ratelimit.Limits, error) {
			changed := ratelimit.Limit{Max: *maxRequests, WindowMs: window.Milliseconds()}
			if !cmd.Flags().Changed("window") {
				changed.WindowMs = limits.Tier(tier).WindowMs
			}
			return limits.With(tier, changed)
		})
		if err != nil {
			return nil, err
		}
		return nil, c.printLimits(a)
	})
	return cmd
}

func (c *cli) printLimits(a *app.Admin) error {
	limits := a.Limits.Current()
	return c.printAs(limits, func(w io.Writer) {
		for _, tier := range ratelimit.Tiers {
			limit := limits.Tier(tier)
			_, _ = fmt.Fprintf(w, "%-8s %d per %s\n", tier, limit.Max, limit.Window())
		}
		if a.Offline {
			c.note("No server is running. The limits apply when one starts.")
		}
	})
}

// keyView is an API key for output.
type keyView struct {
	auth.Key
	State  string `json:"state"`
	Secret string `json:"key,omitempty"` // the full key, when it was just created
}

func newKeyView(k auth.Key) any {
	state := "active"
	switch {
	case !k.RevokedAt.IsZero():
		state = "revoked"
	case !k.ExpiresAt.IsZero() && !time.Now().Before(k.ExpiresAt):
		state = "expired"
	}
	return keyView{Key: k, State: state}
}

func (c *cli) keyCommand() *cobra.Command {
	show := func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		k, err := a.Keys.Store.Key(ctx, args[0])
		return newKeyView(k), withID(err, "API key", args[0])
	}
	list := &cobra.Command{Use: "list [--team TEAM]", Short: "List API keys"}
	teamID := list.Flags().String("team", "", "list only this team's keys")
	list.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		keys, err := a.Keys.Store.Keys(ctx, *teamID)
		return newTable(keys, newKeyView, "id", "teamId", "state", "scopes", "name"), err
	})
	return group("key", "Manage API keys",
		c.keyCreateCommand(),
		list,
		&cobra.Command{Use: "show ID", Short: "Show an API key without its secret", RunE: c.withAdmin(show)},
		&cobra.Command{Use: "revoke ID", Short: "Revoke an API key permanently on all instances",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				if err := a.Keys.Revoke(ctx, args[0]); err != nil {
					return nil, withID(err, "API key", args[0])
				}
				return show(ctx, a, args)
			})},
	)
}

func (c *cli) keyCreateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "create --team TEAM --scope SCOPE…", Short: "Create an API key and print it once",
		Example: "  telapi key create --team tm_… --scope READ_TEAM_APPS --scope READ_TEAM_USAGE --expires-in 2160h"}
	teamID := cmd.Flags().String("team", "", "team ID")
	name := cmd.Flags().String("name", "", "name of the key")
	scopes := cmd.Flags().StringArray("scope", nil, "granted scope (repeatable): "+fault.Join(auth.Scopes))
	lifetime := cmd.Flags().Duration("expires-in", 0, "lifetime; 0 means that the key never expires")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		if _, err := a.Teams.Store.Team(ctx, *teamID); err != nil {
			return nil, withID(err, "team", *teamID)
		}
		var expiresAt time.Time
		if *lifetime != 0 {
			expiresAt = time.Now().Add(*lifetime)
		}
		k, secret, err := a.Keys.Create(ctx, *teamID, *name, convert[auth.Scope](*scopes), expiresAt)
		if err != nil {
			return nil, err
		}
		c.note("Save the key now. It is not stored and cannot be shown again.")
		return keyView{k, "active", secret.Reveal()}, nil
	})
	return cmd
}

// convert converts strings to another string type.
func convert[S ~string](values []string) []S {
	converted := make([]S, len(values))
	for i, value := range values {
		converted[i] = S(value)
	}
	return converted
}

func (c *cli) endpointCommand() *cobra.Command {
	list := &cobra.Command{Use: "list [--team TEAM]", Short: "List endpoints"}
	teamID := list.Flags().String("team", "", "list only this team's endpoints")
	list.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		endpoints, err := a.Endpoints.List(ctx, *teamID)
		return newTable(endpoints, identity, "id", "teamId", "enabled", "modes", "name"), err
	})
	return group("endpoint", "Manage endpoints, which have the settings of sessions",
		c.endpointCreateCommand(),
		list,
		&cobra.Command{Use: "show ID", Short: "Show an endpoint",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				e, err := a.Endpoints.Store.Endpoint(ctx, args[0])
				return e, withID(err, "endpoint", args[0])
			})},
		c.endpointUpdateCommand(),
	)
}

// endpointFlags adds the flags that create and update share. The returned function
// reads the profile, and returns a function that copies the given flags into an
// endpoint.
func (c *cli) endpointFlags(cmd *cobra.Command) func(context.Context) (func(*endpoint.Endpoint), error) {
	f := cmd.Flags()
	name := f.String("name", "", "name of the endpoint")
	modes := f.StringArray("mode", nil, "allowed session mode: webrtc, audio or chat (repeatable)")
	origins := f.StringArray("origin", nil, "web origin that may open sockets, such as https://shop.example (repeatable)")
	profileFile := f.String("profile", "", "JSON file with the gateway profile")
	strict := strictFlag(cmd)
	return func(ctx context.Context) (_ func(*endpoint.Endpoint), err error) {
		var profile wire.GatewayProfile
		if f.Changed("profile") {
			profile, err = c.readProfile(ctx, *profileFile, *strict)
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

func (c *cli) endpointCreateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "create --team TEAM --name NAME --mode MODE…", Short: "Create an endpoint",
		Example: "  telapi endpoint create --team tm_… --name Shop --mode chat --mode webrtc --origin https://shop.example"}
	readFlags := c.endpointFlags(cmd)
	teamID := cmd.Flags().String("team", "", "team ID")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		apply, err := readFlags(ctx)
		if err != nil {
			return nil, err
		}
		e := endpoint.Endpoint{TeamID: *teamID}
		apply(&e)
		if _, err := a.Teams.Store.Team(ctx, *teamID); err != nil {
			return nil, withID(err, "team", *teamID)
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
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		apply, err := readFlags(ctx)
		if err != nil {
			return nil, err
		}
		e, err := a.Endpoints.Update(ctx, args[0], func(e *endpoint.Endpoint) {
			if cmd.Flags().Changed("enabled") {
				e.Enabled = *enabled
			}
			apply(e)
		})
		return e, withID(err, "endpoint", args[0])
	})
	return cmd
}
