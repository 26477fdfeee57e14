package cli

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"telapi/internal/app"
	"telapi/internal/config"
)

// completeTimeout bounds how long a shell waits for the IDs in a store.
const completeTimeout = 3 * time.Second

// completer returns the completions of an argument or a flag, with descriptions.
type completer func(ctx context.Context, cfg config.Config, cmd *cobra.Command) ([]string, error)

// completers are the sources of IDs, by the names of arguments.
var completers = map[string]completer{"TEAM": teamIDs, "ENDPOINT": endpointIDs, "KEY": keyIDs, "CHANNEL": channelIDs}

// idArguments are the names in completers for the argument ID, by group.
var idArguments = map[string]string{"team": "TEAM", "endpoint": "ENDPOINT", "key": "KEY"}

// flagCompleters are the names in completers for flags.
var flagCompleters = map[string]string{"team": "TEAM", "endpoint": "ENDPOINT", "channel": "CHANNEL"}

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
				return c.complete(cmd, idArguments[cmd.Parent().Name()])
			case "N|default":
				return []string{"default"}, cobra.ShellCompDirectiveNoFileComp
			default:
				return c.complete(cmd, name)
			}
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if _, exists := cmd.GetFlagCompletionFunc(f.Name); exists || f.Name == "profile" {
			return
		}
		_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			return c.complete(cmd, flagCompleters[f.Name])
		})
	})
}

// complete returns the completions of a name in completers. A failure offers nothing,
// because an error would appear in the middle of the command line.
func (c *cli) complete(cmd *cobra.Command, name string) (ids []string, _ cobra.ShellCompDirective) {
	if list := completers[name]; list != nil {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		cfg, _, err := config.Load(c.Env, config.Tool)
		if err == nil {
			ids, err = list(ctx, cfg, cmd)
		}
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// describe returns the completions for a list of items.
func describe[T any](items []T, describe func(T) (id, description string)) []string {
	var list []string
	for _, item := range items {
		id, description := describe(item)
		list = append(list, cobra.CompletionWithDesc(id, printable(description)))
	}
	return list
}

// fromStore returns the completions for the rows that read returns.
func fromStore[T any](ctx context.Context, cfg config.Config, read func(*app.Admin) ([]T, error), row func(T) (id, description string)) ([]string, error) {
	a, err := app.OpenAdmin(ctx, cfg, io.Discard, app.Existing)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	items, err := read(a)
	return describe(items, row), err
}
