package main

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"telapi/internal/app"
	"telapi/internal/config"
	"telapi/internal/page"
)

// completeTimeout bounds how long a shell waits for the IDs in a store.
const completeTimeout = 3 * time.Second

// addCompletion makes a shell complete the IDs in arguments and flags. Files are
// offered only where a file is expected.
func (c *cli) addCompletion(cmd *cobra.Command) {
	arguments, _ := parseUse(cmd)
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) >= len(arguments) {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			switch name := arguments[len(args)]; name {
			case "FILE", "BODY.json":
				return nil, cobra.ShellCompDirectiveDefault
			case "ID":
				return c.complete(cmd, cmd.Parent().Name())
			case "N|default":
				return []string{"default"}, cobra.ShellCompDirectiveNoFileComp
			default:
				return c.complete(cmd, strings.ToLower(name))
			}
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		_, exists := cmd.GetFlagCompletionFunc(f.Name)
		switch {
		case exists || f.Name == "profile": // a file: the shell completes it
		case f.Name == "key": // a secret, not the ID of a key
			offer(cmd, f.Name, nil)
		default:
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return c.complete(cmd, f.Name)
			})
		}
	})
}

// complete returns the IDs of a kind. A failure offers nothing, because an error would appear
// in the middle of the command line.
func (c *cli) complete(cmd *cobra.Command, kind string) (ids []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	cfg, _, err := config.Load(c.Env, config.Tool)
	if err == nil {
		err = eachID(ctx, cfg, cmd, kind, func(id, description string) {
			ids = append(ids, cobra.CompletionWithDesc(id, printable(description)))
		})
	}
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// eachID calls add for each channel, team, endpoint or key, as kind says. Other kinds have no IDs.
func eachID(ctx context.Context, cfg config.Config, cmd *cobra.Command, kind string, add func(id, description string)) error {
	if kind == "channel" {
		channels, err := app.ListChannels(ctx, cfg, io.Discard)
		for _, ch := range channels {
			add(ch.ID, ch.State)
		}
		return err
	}
	if kind != "team" && kind != "endpoint" && kind != "key" {
		return nil
	}
	a, err := app.OpenAdmin(ctx, cfg, io.Discard, app.Existing)
	if err != nil {
		return err
	}
	defer a.Close()
	filter := page.OfAllTeams(operator())
	if f := cmd.Flags().Lookup("team"); f != nil && f.Changed {
		filter = page.OfTeam(f.Value.String())
	}
	switch kind {
	case "team":
		teams, err := a.Teams.Store.Teams(ctx, page.All)
		for _, t := range teams {
			add(t.ID, t.Name)
		}
		return err
	case "endpoint":
		endpoints, err := a.Endpoints.Store.Endpoints(ctx, filter, page.All)
		for _, e := range endpoints {
			add(e.ID, e.Name)
		}
		return err
	default: // key
		keys, err := a.Keys.Store.Keys(ctx, filter, page.All)
		for _, k := range keys {
			add(k.ID, k.Name)
		}
		return err
	}
}
