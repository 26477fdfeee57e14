package main

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/page"
	"telapi/internal/team"
)

func (c *cli) teamCommand() *cobra.Command {
	return group("team", "Manage teams, which own API keys, endpoints, quota and usage",
		c.teamCreateCommand(),
		&cobra.Command{Use: "list", Short: "List all teams",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
				teams, err := a.Teams.Store.Teams(ctx, page.All)
				var rows []team.View
				for _, t := range teams {
					rows = append(rows, t.View(nil)) // without today's requests
				}
				return newTable(rows, "id", "name", "disabled", "dailyQuota"), err
			})},
		&cobra.Command{Use: "show ID", Short: "Show a team", RunE: c.withAdmin(showTeam)},
		c.teamUpdateCommand(),
	)
}

func (c *cli) teamCreateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "create NAME", Short: "Create a team", Example: "  telapi team create 'Acme Ltd'"}
	cmd.RunE = c.withEnsuredDatabase(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		t, err := a.Teams.Create(ctx, team.Team{Name: args[0]})
		return t.View(nil), withFlags(cmd, err, map[string]string{"/name": "NAME"})
	})
	return cmd
}

func (c *cli) teamUpdateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "update ID", Short: "Change a team; flags that are not set change nothing",
		Long: `Changes the name of a team, or disables it. A disabled team's API keys and console JWTs are
rejected, and its sessions end at once. Calls that a runtime opened without a session go on.
Enabling the team again makes its credentials valid; its sessions stay ended.`,
		Example: "  telapi team update tm_… --disabled"}
	name := cmd.Flags().String("name", "", "new name")
	disabled := cmd.Flags().Bool("disabled", false, "reject the credentials of the team and end its sessions; =false enables it again")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		return updateTeam(ctx, cmd, a, args[0], func(t *team.Team) {
			if cmd.Flags().Changed("name") {
				t.Name = *name
			}
			if cmd.Flags().Changed("disabled") {
				t.Disabled = *disabled
			}
		})
	})
	return cmd
}

func updateTeam(ctx context.Context, cmd *cobra.Command, a *app.Admin, id string, change func(*team.Team)) (any, error) {
	t, err := a.Teams.Update(ctx, id, func(t *team.Team) error { change(t); return nil })
	return t.View(nil), withFlags(cmd, withID(err, "team", id), map[string]string{"/name": "--name"})
}

func showTeam(ctx context.Context, a *app.Admin, args []string) (any, error) {
	t, err := a.Teams.Store.Team(ctx, args[0])
	if err != nil {
		return nil, withID(err, "team", args[0])
	}
	used, err := a.UsedToday(ctx, t.ID)
	return t.View(used), err
}

func (c *cli) quotaCommand() *cobra.Command {
	return group("quota", "Manage the daily request quota of a team",
		c.quotaSetCommand(),
		&cobra.Command{Use: "show TEAM", Short: "Show a team's quota", RunE: c.withAdmin(showTeam)},
	)
}

func (c *cli) quotaSetCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "set TEAM N|default", Short: "Set the number of API requests a team may make per UTC day",
		Example: "  telapi quota set tm_… 100000"}
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		var quota *int64
		if args[1] != "default" {
			n, err := strconv.ParseInt(args[1], 10, 64)
			if err != nil || n < 0 || n > team.MaxDailyQuota {
				return nil, c.usageError("invalid quota %q: use an integer from 0 to %d, or default", args[1], team.MaxDailyQuota)
			}
			quota = &n
		}
		return updateTeam(ctx, cmd, a, args[0], func(t *team.Team) { t.DailyQuota = quota })
	})
	return cmd
}

func (c *cli) keyCommand() *cobra.Command {
	show := func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		k, err := a.Keys.Store.Key(ctx, auth.KeyID(args[0]))
		return k.View(time.Now()), withID(err, "API key", args[0])
	}
	list := &cobra.Command{Use: "list [--team TEAM]", Short: "List API keys"}
	list.RunE = c.withTeams(list, "list only this team's keys", func(ctx context.Context, a *app.Admin, teams page.Teams) (any, error) {
		keys, err := a.Keys.Store.Keys(ctx, teams, page.All)
		var rows []auth.KeyView
		for _, k := range keys {
			rows = append(rows, k.View(time.Now()))
		}
		return newTable(rows, "id", "teamId", "state", "scopes", "name"), err
	})
	return group("key", "Manage API keys",
		c.keyCreateCommand(),
		list,
		&cobra.Command{Use: "show ID", Short: "Show an API key without its secret", RunE: c.withAdmin(show)},
		&cobra.Command{Use: "revoke ID", Short: "Revoke an API key permanently on all instances",
			Long: `Revokes an API key. Pass its ID, or the key itself, for example one that was found in a log.
All instances reject the key within a second.`,
			Example: "  telapi key revoke tk_…",
			RunE: c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				if err := a.Keys.Revoke(ctx, auth.KeyID(args[0])); err != nil {
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
	oneOf(cmd, "scope", auth.Scopes)
	lifetime := cmd.Flags().Duration("expires-in", 0, "lifetime; 0 means that the key never expires")
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		if *lifetime < 0 {
			return nil, c.usageError("invalid --expires-in %q: use a duration above 0, such as 2160h", *lifetime)
		}
		if _, err := a.Teams.Store.Team(ctx, *teamID); err != nil {
			return nil, withID(err, "team", *teamID)
		}
		k := auth.Key{TeamID: *teamID, Name: *name, Scopes: convert[auth.Scope](*scopes)}
		if *lifetime != 0 {
			k.ExpiresAt = time.Now().Add(*lifetime)
		}
		k, full, err := a.Keys.Create(ctx, k)
		if err != nil {
			return nil, withFlags(cmd, err, map[string]string{"/name": "--name"})
		}
		c.note("Save the key now. It is not stored and cannot be shown again.")
		view := k.View(time.Now())
		view.FullKey = full.Reveal()
		return view, nil
	})
	return cmd
}
