package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/ratelimit"
	"telapi/internal/team"
)

// office runs a command's body with the stores open.
func (c *cli) office(body func(ctx context.Context, o *app.Office, args []string) error) func(*cobra.Command, []string) error {
	return c.work(func(ctx context.Context, args []string) error {
		cfg, err := c.configure()
		if err != nil {
			return err
		}
		o, err := app.OpenOffice(ctx, cfg, c.Err)
		if err != nil {
			return err
		}
		defer o.Close()
		return body(ctx, o, args)
	})
}

// answer is office for a body that comes to one thing, and shows it.
func answer[T any](c *cli, show func(T) error, body func(ctx context.Context, o *app.Office, args []string) (T, error)) func(*cobra.Command, []string) error {
	return c.office(func(ctx context.Context, o *app.Office, args []string) error {
		thing, err := body(ctx, o, args)
		if err != nil {
			return err
		}
		return show(thing)
	})
}

func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, GroupID: groupAdmin, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return fmt.Errorf("%s needs a command of its own\n\n%s", cmd.CommandPath(), cmd.UsageString())
		}}
	g.AddCommand(commands...)
	return g
}

// teamView is a team as the command line shows it.
type teamView struct {
	ID         string     `json:"id"`
	Name       string     `json:"name"`
	DailyQuota int64      `json:"dailyQuota"`
	CreatedAt  *time.Time `json:"createdAt"`
}

func viewTeam(t team.Team) teamView { return teamView{t.ID, t.Name, t.Quota(), moment(t.CreatedAt)} }

func (c *cli) printTeam(t team.Team) error {
	v := viewTeam(t)
	return c.print(v, fields("id", v.ID, "name", v.Name, "daily quota", strconv.FormatInt(v.DailyQuota, 10), "created", when(t.CreatedAt)))
}

func (c *cli) teamCommand() *cobra.Command {
	return group("team", "Teams: the tenants that own keys, endpoints, quota and usage",
		&cobra.Command{Use: "create NAME", Short: "Create a team", Args: cobra.ExactArgs(1),
			RunE: answer(c, c.printTeam, func(ctx context.Context, o *app.Office, args []string) (team.Team, error) {
				return o.Teams.Create(ctx, args[0])
			})},
		&cobra.Command{Use: "list", Short: "List all teams", Args: cobra.NoArgs,
			RunE: answer(c, c.printTeams, func(ctx context.Context, o *app.Office, _ []string) ([]team.Team, error) {
				return o.Teams.List(ctx)
			})},
		&cobra.Command{Use: "show ID", Short: "Show a team", Args: cobra.ExactArgs(1), RunE: answer(c, c.printTeam, showTeam)},
		c.teamUpdateCommand(),
	)
}

func showTeam(ctx context.Context, o *app.Office, args []string) (team.Team, error) {
	return o.Teams.Show(ctx, args[0])
}

func (c *cli) printTeams(teams []team.Team) error {
	return table(c, teams, viewTeam, []string{"ID", "NAME", "QUOTA/DAY"}, func(v teamView) []string {
		return []string{v.ID, v.Name, strconv.FormatInt(v.DailyQuota, 10)}
	})
}

func (c *cli) teamUpdateCommand() *cobra.Command {
	var name string
	cmd := &cobra.Command{Use: "update ID --name NAME", Short: "Rename a team", Args: cobra.ExactArgs(1),
		RunE: answer(c, c.printTeam, func(ctx context.Context, o *app.Office, args []string) (team.Team, error) {
			return o.Teams.Rename(ctx, args[0], name)
		})}
	cmd.Flags().StringVar(&name, "name", "", "the new name")
	must(cmd.MarkFlagRequired("name"))
	return cmd
}

func (c *cli) quotaCommand() *cobra.Command {
	return group("quota", "Daily request quota of a team",
		&cobra.Command{Use: "set TEAM N|default", Short: "Set how many API requests a team may make per UTC day", Args: cobra.ExactArgs(2),
			RunE: answer(c, c.printTeam, func(ctx context.Context, o *app.Office, args []string) (team.Team, error) {
				if args[1] == "default" {
					return o.Teams.SetQuota(ctx, args[0], nil)
				}
				n, err := strconv.ParseInt(args[1], 10, 64)
				if err != nil {
					return team.Team{}, c.usage("%q is no quota: give a number, or the word default", args[1])
				}
				return o.Teams.SetQuota(ctx, args[0], &n)
			})},
		&cobra.Command{Use: "show TEAM", Short: "Show a team's quota", Args: cobra.ExactArgs(1), RunE: answer(c, c.printTeam, showTeam)},
	)
}

func (c *cli) limitsCommand() *cobra.Command {
	return group("limits", "Rate limits by client address, shared by all instances",
		&cobra.Command{Use: "show", Short: "Show the limits in force", Args: cobra.NoArgs,
			RunE: c.office(func(ctx context.Context, o *app.Office, _ []string) error {
				if err := o.Limits.Reload(ctx); err != nil {
					return err
				}
				return c.printLimits(o)
			})},
		c.limitsSetCommand(),
	)
}

func (c *cli) limitsSetCommand() *cobra.Command {
	var tier string
	var most int64
	var window time.Duration
	cmd := &cobra.Command{Use: "set --tier api|webhook|auth --max N [--window DURATION]",
		Short: "Change one tier; every instance holds to it within a second", Args: cobra.NoArgs,
		Example: "  telapi limits set --tier api --max 600 --window 1m"}
	cmd.Flags().StringVar(&tier, "tier", "", "api, webhook or auth")
	cmd.Flags().Int64Var(&most, "max", 0, "requests per window and address")
	cmd.Flags().DurationVar(&window, "window", 0, "length of the window, such as 1m; without it the tier's stays")
	must(cmd.MarkFlagRequired("tier"))
	must(cmd.MarkFlagRequired("max"))
	cmd.RunE = c.office(func(ctx context.Context, o *app.Office, _ []string) error {
		if !slices.Contains(ratelimit.Tiers, ratelimit.Tier(tier)) {
			return c.usage("there is no tier %q; tiers are api, webhook and auth", tier)
		}
		err := o.Limits.Change(ctx, func(limits ratelimit.Limits) (ratelimit.Limits, error) {
			limit := ratelimit.Limit{Max: most, WindowMs: window.Milliseconds()}
			if !cmd.Flags().Changed("window") {
				limit.WindowMs = limits.Tier(ratelimit.Tier(tier)).WindowMs
			}
			return limits.With(ratelimit.Tier(tier), limit)
		})
		if err != nil {
			return err
		}
		return c.printLimits(o)
	})
	return cmd
}

func (c *cli) printLimits(o *app.Office) error {
	limits := o.Limits.Current()
	return c.print(limits, func(w io.Writer) {
		pairs := []string{"TIER", "LIMIT"}
		for _, name := range ratelimit.Tiers {
			limit := limits.Tier(name)
			pairs = append(pairs, string(name), fmt.Sprintf("%d per %s", limit.Max, limit.Window()))
		}
		fields(pairs...)(w)
		if o.Alone {
			_, _ = fmt.Fprintln(w, "No server is running; the next one starts with these.")
		}
	})
}

// must stops a build in which a command names a flag it has not defined.
func must(err error) {
	if err != nil {
		panic(errors.Join(errors.New("command line is assembled wrongly"), err))
	}
}
