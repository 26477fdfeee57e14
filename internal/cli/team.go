package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/ratelimit"
	"telapi/internal/team"
)

// teamView is a team with its effective quota.
func teamView(t team.Team) any {
	return struct {
		team.Team
		Quota int64 `json:"dailyQuota"`
	}{t, t.Quota()}
}

func (c *cli) teamCommand() *cobra.Command {
	update := &cobra.Command{Use: "update ID --name NAME", Short: "Rename a team"}
	name := update.Flags().String("name", "", "new name")
	require(update, "name")
	update.RunE = c.show(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		t, err := a.Teams.Rename(ctx, args[0], *name)
		return teamView(t), err
	})
	return group("team", "Manage teams, which own API keys, endpoints, quota and usage",
		&cobra.Command{Use: "create NAME", Short: "Create a team",
			RunE: c.show(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				t, err := a.Teams.Create(ctx, args[0])
				return teamView(t), err
			})},
		&cobra.Command{Use: "list", Short: "List all teams",
			RunE: c.show(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
				teams, err := a.Teams.Store.Teams(ctx)
				return newTable(teams, teamView, "id", "name", "dailyQuota"), err
			})},
		&cobra.Command{Use: "show ID", Short: "Show a team", RunE: c.show(showTeam)},
		update,
	)
}

func showTeam(ctx context.Context, a *app.Admin, args []string) (any, error) {
	t, err := a.Teams.Store.Team(ctx, args[0])
	return teamView(t), err
}

func (c *cli) quotaCommand() *cobra.Command {
	return group("quota", "Manage the daily request quota of a team",
		&cobra.Command{Use: "set TEAM N|default", Short: "Set the number of API requests a team may make per UTC day",
			RunE: c.show(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				var quota *int64
				if args[1] != "default" {
					n, err := strconv.ParseInt(args[1], 10, 64)
					if err != nil {
						return nil, c.usageError("invalid quota %q: use an integer or default", args[1])
					}
					quota = &n
				}
				t, err := a.Teams.SetQuota(ctx, args[0], quota)
				return teamView(t), err
			})},
		&cobra.Command{Use: "show TEAM", Short: "Show a team's quota", RunE: c.show(showTeam)},
	)
}

func (c *cli) limitsCommand() *cobra.Command {
	return group("limits", "Manage the rate limits per client address, shared by all instances",
		&cobra.Command{Use: "show", Short: "Show the current limits",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) error {
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
		Short:   "Change the limit of one tier on all instances within a second",
		Example: "  telapi limits set --tier api --max 600 --window 1m"}
	name := cmd.Flags().String("tier", "", "api, webhook or auth")
	limit := cmd.Flags().Int64("max", 0, "requests per window and client address")
	window := cmd.Flags().Duration("window", 0, "length of the window, such as 1m (default: unchanged)")
	require(cmd, "tier", "max")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) error {
		if err := checkFlag(c, "tier", *name, ratelimit.Tiers); err != nil {
			return err
		}
		tier := ratelimit.Tier(*name)
		err := a.Limits.Change(ctx, func(limits ratelimit.Limits) (ratelimit.Limits, error) {
			changed := ratelimit.Limit{Max: *limit, WindowMs: window.Milliseconds()}
			if !cmd.Flags().Changed("window") {
				changed.WindowMs = limits.Tier(tier).WindowMs
			}
			return limits.With(tier, changed)
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
			c.note("No server is running. The limits apply when one starts.")
		}
	})
}
