package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/auth"
	"telapi/internal/fault"
)

// keyView is a key's record for output.
type keyView struct {
	auth.Key
	State  string `json:"state"`
	Secret string `json:"key,omitempty"` // only when it is created
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
		return newKeyView(k), err
	}
	list := &cobra.Command{Use: "list [--team TEAM]", Short: "List API keys"}
	teamID := list.Flags().String("team", "", "list only this team's keys")
	list.RunE = c.show(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		keys, err := a.Keys.Store.Keys(ctx, *teamID)
		return newTable(keys, newKeyView, "id", "teamId", "state", "scopes", "name"), err
	})
	return group("key", "Manage API keys",
		c.keyCreateCommand(),
		list,
		&cobra.Command{Use: "show ID", Short: "Show an API key without its secret", RunE: c.show(show)},
		&cobra.Command{Use: "revoke ID", Short: "Revoke an API key permanently on all instances",
			RunE: c.show(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
				if err := a.Keys.Revoke(ctx, args[0]); err != nil {
					return nil, err
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
	expires := cmd.Flags().Duration("expires-in", 0, "lifetime; 0 means that the key never expires")
	require(cmd, "team", "scope")
	cmd.RunE = c.show(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		if _, err := a.Teams.Store.Team(ctx, *teamID); err != nil {
			return nil, err
		}
		var until time.Time
		if *expires != 0 {
			until = time.Now().Add(*expires)
		}
		k, secret, err := a.Keys.Create(ctx, *teamID, *name, convert[auth.Scope](*scopes), until)
		if err != nil {
			return nil, err
		}
		c.note("Save the key now. It is not stored and cannot be shown again.")
		return keyView{k, "active", secret.Reveal()}, nil
	})
	return cmd
}

// convert changes the type of strings.
func convert[To ~string](list []string) []To {
	out := make([]To, len(list))
	for i, s := range list {
		out[i] = To(s)
	}
	return out
}
