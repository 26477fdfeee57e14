package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/auth"
)

// keyView is a key's record as the command line shows it. The secret is in it
// only at creation.
type keyView struct {
	ID         string       `json:"id"`
	Key        string       `json:"key,omitempty"`
	TeamID     string       `json:"teamId"`
	Name       string       `json:"name,omitempty"`
	Scopes     []auth.Scope `json:"scopes"`
	State      string       `json:"state"`
	CreatedAt  *time.Time   `json:"createdAt"`
	ExpiresAt  *time.Time   `json:"expiresAt,omitempty"`
	RevokedAt  *time.Time   `json:"revokedAt,omitempty"`
	LastUsedAt *time.Time   `json:"lastUsedAt,omitempty"`
}

func viewKey(k auth.Key) keyView {
	state := "active"
	switch {
	case !k.RevokedAt.IsZero():
		state = "revoked"
	case !k.ExpiresAt.IsZero() && !time.Now().Before(k.ExpiresAt):
		state = "expired"
	}
	return keyView{
		ID: k.ID, TeamID: k.TeamID, Name: k.Name, Scopes: k.Scopes, State: state,
		CreatedAt: moment(k.CreatedAt), ExpiresAt: moment(k.ExpiresAt), RevokedAt: moment(k.RevokedAt), LastUsedAt: moment(k.LastUsedAt),
	}
}

func (c *cli) keyCommand() *cobra.Command {
	return group("key", "API keys of a team",
		c.keyCreateCommand(),
		c.keyListCommand(),
		&cobra.Command{Use: "show ID", Short: "Show a key's record (never the key itself)", Args: cobra.ExactArgs(1),
			RunE: answer(c, c.printKey, func(ctx context.Context, o *app.Office, args []string) (auth.Key, error) {
				return o.Keys.Show(ctx, args[0])
			})},
		&cobra.Command{Use: "revoke ID", Short: "Revoke a key on every instance, at once and for good", Args: cobra.ExactArgs(1),
			RunE: answer(c, c.printKey, func(ctx context.Context, o *app.Office, args []string) (auth.Key, error) {
				if err := o.Keys.Revoke(ctx, args[0]); err != nil {
					return auth.Key{}, err
				}
				return o.Keys.Show(ctx, args[0])
			})},
	)
}

func (c *cli) printKey(k auth.Key) error {
	v := viewKey(k)
	return c.print(v, fields("id", v.ID, "team", v.TeamID, "name", v.Name, "scopes", joined(v.Scopes), "state", v.State,
		"created", when(k.CreatedAt), "expires", when(k.ExpiresAt), "revoked", when(k.RevokedAt), "last used", when(k.LastUsedAt)))
}

func (c *cli) keyCreateCommand() *cobra.Command {
	var teamID, name string
	var scopes []string
	var expires time.Duration
	cmd := &cobra.Command{Use: "create --team TEAM --scope SCOPE…", Short: "Create a key and print it, this once", Args: cobra.NoArgs,
		Example: "  telapi key create --team tm_… --scope READ_TEAM_APPS --scope READ_TEAM_USAGE --expires-in 2160h",
		RunE: c.office(func(ctx context.Context, o *app.Office, _ []string) error {
			if _, err := o.Teams.Show(ctx, teamID); err != nil {
				return err
			}
			var until time.Time
			if expires != 0 {
				until = time.Now().Add(expires)
			}
			k, secret, err := o.Keys.Create(ctx, teamID, name, words[auth.Scope](scopes), until)
			if err != nil {
				return err
			}
			v := viewKey(k)
			v.Key = secret.Reveal()
			return c.print(v, func(w io.Writer) {
				fields("id", v.ID, "team", v.TeamID, "scopes", joined(v.Scopes), "expires", when(k.ExpiresAt), "key", v.Key)(w)
				_, _ = fmt.Fprintln(w, "Keep the key now: it is not stored and cannot be shown again.")
			})
		})}
	cmd.Flags().StringVar(&teamID, "team", "", "the team's id")
	cmd.Flags().StringVar(&name, "name", "", "a name to know it by")
	cmd.Flags().StringArrayVar(&scopes, "scope", nil, "a scope it has (repeatable)")
	cmd.Flags().DurationVar(&expires, "expires-in", 0, "how long it is good for; 0 is for ever")
	must(cmd.MarkFlagRequired("team"))
	must(cmd.MarkFlagRequired("scope"))
	return cmd
}

func (c *cli) keyListCommand() *cobra.Command {
	var teamID string
	cmd := &cobra.Command{Use: "list [--team TEAM]", Short: "List keys", Args: cobra.NoArgs,
		RunE: c.office(func(ctx context.Context, o *app.Office, _ []string) error {
			keys, err := o.Keys.List(ctx, teamID)
			if err != nil {
				return err
			}
			return table(c, keys, viewKey, []string{"ID", "TEAM", "STATE", "SCOPES", "NAME"}, func(v keyView) []string {
				return []string{v.ID, v.TeamID, v.State, joined(v.Scopes), v.Name}
			})
		})}
	cmd.Flags().StringVar(&teamID, "team", "", "only this team's")
	return cmd
}
