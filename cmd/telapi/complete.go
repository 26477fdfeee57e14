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
	arguments, _ := words(cmd)
	if cmd.ValidArgsFunction == nil && cmd.Args != nil {
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
		if _, exists := cmd.GetFlagCompletionFunc(f.Name); exists || f.Name == "profile" {
			return
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			if f.Name == "key" { // a secret, not an ID
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return c.complete(cmd, f.Name)
		})
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

// eachID calls add with the IDs of a kind and their descriptions. Other kinds than these have none.
func eachID(ctx context.Context, cfg config.Config, cmd *cobra.Command, kind string, add func(id, description string)) error {
	switch kind {
	case "team", "endpoint", "key":
	case "channel":
		channels, err := app.ListChannels(ctx, cfg, io.Discard)
		for _, ch := range channels {
			add(ch.ID, ch.State)
		}
		return err
	default:
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
	default:
		keys, err := a.Keys.Store.Keys(ctx, filter, page.All)
		for _, k := range keys {
			add(k.ID, k.Name)
		}
		return err
	}
}
