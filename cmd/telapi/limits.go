package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/ratelimit"
)

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
	oneOf(cmd, "tier", ratelimit.Tiers)
	cmd.RunE = c.withEnsuredDatabase(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		if cmd.Flags().Changed("window") && (*window < ratelimit.MinWindow || *window > ratelimit.MaxWindow) {
			return nil, c.usageError("invalid --window %q: use a duration from %s to %s", *window, ratelimit.MinWindow, ratelimit.MaxWindow)
		}
		tier := ratelimit.Tier(*tierName)
		err := a.Limits.Change(ctx, func(limits ratelimit.Limits) (ratelimit.Limits, error) {
			limits.Tier(tier).Max = *maxRequests
			if cmd.Flags().Changed("window") {
				limits.Tier(tier).WindowMs = window.Milliseconds()
			}
			return limits, nil
		})
		if err != nil {
			return nil, withFlags(cmd, err, map[string]string{"/tiers/" + *tierName + "/max": "--max"})
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
