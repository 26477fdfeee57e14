package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/auth"
	"telapi/internal/fault"
)

// keyView is a key's record as the command line shows it.
type keyView struct {
	auth.Key
	State  string `json:"state"`
	Secret string `json:"key,omitempty"` // at creation only
}

func viewKey(k auth.Key) any {
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
		return viewKey(k), err
	}
	return group("key", "API keys of a team",
		c.keyCreateCommand(),
		c.keyListCommand(),
		&cobra.Command{Use: "show ID", Short: "Show a key's record (never the key itself)", Args: cobra.ExactArgs(1), RunE: c.answer(show)},
		&cobra.Command{Use: "revoke ID", Short: "Revoke a key on every instance, at once and for good", Args: cobra.ExactArgs(1),
			RunE: c.answer(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				if err := a.Keys.Revoke(ctx, args[0]); err != nil {
					return nil, err
				}
				return show(ctx, a, args)
			})},
	)
}

func (c *cli) keyCreateCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "create --team TEAM --scope SCOPE…", Short: "Create a key and print it, this once", Args: cobra.NoArgs,
		Example: "  telapi key create --team tm_… --scope READ_TEAM_APPS --scope READ_TEAM_USAGE --expires-in 2160h"}
	teamID := cmd.Flags().String("team", "", "the team's id")
	name := cmd.Flags().String("name", "", "a name to know it by")
	scopes := cmd.Flags().StringArray("scope", nil, "a scope it has, one of "+fault.Join(auth.Scopes)+" (repeatable)")
	expires := cmd.Flags().Duration("expires-in", 0, "how long it is good for; 0 is for ever")
	needs(cmd, "team", "scope")
	cmd.RunE = c.answer(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		if _, err := a.Teams.Store.Team(ctx, *teamID); err != nil {
			return nil, err
		}
		var until time.Time
		if *expires != 0 {
			until = time.Now().Add(*expires)
		}
		k, secret, err := a.Keys.Create(ctx, *teamID, *name, words[auth.Scope](*scopes), until)
		if err != nil {
			return nil, err
		}
		c.note("Keep the key now: it is not stored and cannot be shown again.")
		return keyView{k, "active", secret.Reveal()}, nil
	})
	return cmd
}

func (c *cli) keyListCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "list [--team TEAM]", Short: "List keys", Args: cobra.NoArgs}
	teamID := cmd.Flags().String("team", "", "only this team's")
	cmd.RunE = c.answer(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		keys, err := a.Keys.Store.Keys(ctx, *teamID)
		return tableOf(keys, viewKey, "id", "teamId", "state", "scopes", "name"), err
	})
	return cmd
}

// words turns what was typed into what the domain calls it.
func words[To ~string](list []string) []To {
	out := make([]To, len(list))
	for i, word := range list {
		out[i] = To(word)
	}
	return out
}
