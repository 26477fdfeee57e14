package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/team"
)

// admin runs a command's body with the stores open.
func (c *cli) admin(body func(ctx context.Context, a *app.Admin, args []string) error) runE {
	return c.tool(func(ctx context.Context, args []string) error {
		a, err := app.OpenAdmin(ctx, c.cfg, c.Err)
		if err != nil {
			return err
		}
		defer a.Close()
		return body(ctx, a, args)
	})
}

// answer is admin for a body that comes to something to be printed.
func (c *cli) answer(body func(ctx context.Context, a *app.Admin, args []string) (any, error)) runE {
	return c.admin(func(ctx context.Context, a *app.Admin, args []string) error {
		thing, err := body(ctx, a, args)
		if err != nil {
			return err
		}
		return c.print(thing)
	})
}

func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	var names []string
	for _, c := range commands {
		names = append(names, c.Name())
	}
	g := &cobra.Command{Use: use, GroupID: groupAdmin, Short: short,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q: %s has %s", args[0], cmd.CommandPath(), fault.Join(names))
			}
			return fmt.Errorf("%s needs a command of its own\n\n%s", cmd.CommandPath(), cmd.UsageString())
		}}
	g.AddCommand(commands...)
	return g
}

// needs marks the flags without which a command is not understood.
func needs(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the command has no such flag
		}
	}
}

// viewTeam shows the quota that holds, whoever set it.
func viewTeam(t team.Team) any {
	return struct {
		team.Team
		Quota int64 `json:"dailyQuota"`
	}{t, t.Quota()}
}

func (c *cli) teamCommand() *cobra.Command {
	update := &cobra.Command{Use: "update ID --name NAME", Short: "Rename a team", Args: cobra.ExactArgs(1)}
	name := update.Flags().String("name", "", "the new name")
	needs(update, "name")
	update.RunE = c.answer(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		t, err := a.Teams.Rename(ctx, args[0], *name)
		return viewTeam(t), err
	})
	return group("team", "Teams: the tenants that own keys, endpoints, quota and usage",
		&cobra.Command{Use: "create NAME", Short: "Create a team", Args: cobra.ExactArgs(1),
			RunE: c.answer(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				t, err := a.Teams.Create(ctx, args[0])
				return viewTeam(t), err
			})},
		&cobra.Command{Use: "list", Short: "List all teams", Args: cobra.NoArgs,
			RunE: c.answer(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
				teams, err := a.Teams.Store.Teams(ctx)
				return tableOf(teams, viewTeam, "id", "name", "dailyQuota"), err
			})},
		&cobra.Command{Use: "show ID", Short: "Show a team", Args: cobra.ExactArgs(1), RunE: c.answer(showTeam)},
		update,
	)
}

func showTeam(ctx context.Context, a *app.Admin, args []string) (any, error) {
	t, err := a.Teams.Store.Team(ctx, args[0])
	return viewTeam(t), err
}

func (c *cli) quotaCommand() *cobra.Command {
	return group("quota", "Daily request quota of a team",
		&cobra.Command{Use: "set TEAM N|default", Short: "Set how many API requests a team may make per UTC day", Args: cobra.ExactArgs(2),
			RunE: c.answer(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				var quota *int64
				if args[1] != "default" {
					n, err := strconv.ParseInt(args[1], 10, 64)
					if err != nil {
						return nil, c.usage("%q is no quota: give a number, or the word default", args[1])
					}
					quota = &n
				}
				t, err := a.Teams.SetQuota(ctx, args[0], quota)
				return viewTeam(t), err
			})},
		&cobra.Command{Use: "show TEAM", Short: "Show a team's quota", Args: cobra.ExactArgs(1), RunE: c.answer(showTeam)},
	)
}

func (c *cli) limitsCommand() *cobra.Command {
	return group("limits", "Rate limits by client address, shared by all instances",
		&cobra.Command{Use: "show", Short: "Show the limits in force", Args: cobra.NoArgs,
			RunE: c.admin(func(ctx context.Context, a *app.Admin, _ []string) error {
				if err := a.Limits.Reload(ctx); err != nil {
					return err
				}
				return c.printLimits(a)
			})},
		c.limitsSetCommand(),
	)
}

func (c *cli) limitsSetCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "set --tier api|webhook|auth --max N [--window DURATION]",
		Short: "Change one tier; every instance holds to it within a second", Args: cobra.NoArgs,
		Example: "  telapi limits set --tier api --max 600 --window 1m"}
	name := cmd.Flags().String("tier", "", "api, webhook or auth")
	most := cmd.Flags().Int64("max", 0, "requests per window and address")
	window := cmd.Flags().Duration("window", 0, "length of the window, such as 1m; without it the tier's stays")
	needs(cmd, "tier", "max")
	cmd.RunE = c.admin(func(ctx context.Context, a *app.Admin, _ []string) error {
		tier := ratelimit.Tier(*name)
		if !slices.Contains(ratelimit.Tiers, tier) {
			return c.usage("there is no tier %q; tiers are api, webhook and auth", tier)
		}
		err := a.Limits.Change(ctx, func(limits ratelimit.Limits) (ratelimit.Limits, error) {
			limit := ratelimit.Limit{Max: *most, WindowMs: window.Milliseconds()}
			if !cmd.Flags().Changed("window") {
				limit.WindowMs = limits.Tier(tier).WindowMs
			}
			return limits.With(tier, limit)
		})
		if err != nil {
			return err
		}
		return c.printLimits(a)
	})
	return cmd
}

func (c *cli) printLimits(a *app.Admin) error {
	limits := a.Limits.Current()
	return c.printAs(limits, func(w io.Writer) {
		for _, name := range ratelimit.Tiers {
			limit := limits.Tier(name)
			_, _ = fmt.Fprintf(w, "%-8s %d per %s\n", name, limit.Max, limit.Window())
		}
		if a.Offline {
			c.note("No server is running; the next one starts with these.")
		}
	})
}
