package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/command"
	"telapi/internal/team"
)

func (c *cli) callbackIssueCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "issue --channel CHANNEL", Short: "Create a work item and print its credential",
		Long: `Creates a work item on a channel and prints its credential, with a curl command that posts
a result. The URL uses PUBLIC_URL, or TELAPI_HOST and TELAPI_PORT: set them as for the server.

Results are delivered in the order of their work items. Until this one is answered or expires,
it blocks the results of later work items on the channel. --scope channel blocks none.`,
		Example: "  telapi callback issue --channel call-4711 --kind llm --ttl 1m"}
	channelFlag := cmd.Flags().String("channel", "", "channel ID")
	kind := cmd.Flags().String("kind", string(wire.BotItem), "kind of provider: "+joinWords(wire.WorkItemKinds, "or"))
	scopes := map[string]wire.Scope{"work_item": wire.ScopeItem, "channel": wire.ScopeChannel}
	scope := cmd.Flags().String("scope", "work_item", "work_item: valid for one callback; channel: valid for any number")
	ttl := cmd.Flags().Duration("ttl", calls.DefaultTTL, "time until the work item expires")
	oneOf(cmd, "kind", wire.WorkItemKinds)
	oneOf(cmd, "scope", []string{"work_item", "channel"})
	cmd.RunE = c.withChannel(func([]string) string { return *channelFlag }, func(ctx context.Context, r *calls.Runtime, channelID string) (any, error) {
		if *ttl < time.Millisecond || *ttl > calls.MaxTTL {
			return nil, c.usageError("invalid --ttl %q: use a duration from 1ms to %s", *ttl, calls.MaxTTL)
		}
		observer := r.Observe(channelID, fromOldest) // needs no claim
		item, err := observer.Await(ctx, calls.AwaitOptions{
			Kind: wire.WorkItemKind(*kind), Scope: scopes[*scope], TTL: *ttl,
		})
		if err != nil {
			return nil, err
		}
		url := c.baseURL() + item.Path
		err = c.print(struct {
			Token      string    `json:"token"`
			URL        string    `json:"url"`
			WorkItemID string    `json:"workItemId"`
			ExpiresAt  time.Time `json:"expiresAt"`
		}{item.Token, url, item.ID, item.ExpiresAt})
		if err != nil || c.json {
			return nil, err
		}
		_, _ = fmt.Fprintf(c.Out, "\ncurl -i '%s' -H 'token: %s' -H 'Content-Type: application/json' \\\n  -d '%s'\n",
			url, item.Token, sampleBody(wire.WorkItemKind(*kind), channelID))
		if scopes[*scope] == wire.ScopeItem {
			_, _ = fmt.Fprintf(c.Out, "\nThe work item blocks later ones on this channel until it is answered, or expires at %s.\n", item.ExpiresAt.Format(time.TimeOnly))
		}
		return nil, nil
	})
	return cmd
}

func sampleBody(kind wire.WorkItemKind, channelID string) string {
	switch kind {
	case wire.LLMItem:
		return `{"content":"Hello"}`
	case wire.ToolItem:
		return `{"result":"done"}`
	default:
		return fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"message":[{"content":{"textMessage":{"textPlain":"Hello"}}}]}}`, channelID)
	}
}

func (c *cli) callbackLintCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "lint BODY.json", Short: "Check a callback body and print the resulting stream entries",
		Long: `Reads a callback body from a file, or from standard input if the name is -, and prints the
entries that it would append to the runtime stream, one per line, including denied commands
with the reason. An invalid body is reported with all its issues. Members that have no
effect, for example because their name is misspelled, are reported as warnings. No server
is needed. A streamed answer is read if the name ends in .ndjson or .sse, or with --content-type.
COMMANDS_DISABLED, TRANSFER_ALLOWED_TARGETS and TRANSFER_ALLOWED_HEADERS apply as on the server.`,
		Example: "  telapi callback lint answer.json --profile profile.json\n  telapi callback lint answer.ndjson --kind llm"}
	profileFile := cmd.Flags().String("profile", "", "JSON file with the gateway profile (default: no command is allowed)")
	kind := cmd.Flags().String("kind", string(wire.BotItem), "kind of provider: "+joinWords(wire.WorkItemKinds, "or"))
	channelID := cmd.Flags().String("channel", "", "channel ID (default: the one in the body)")
	contentType := cmd.Flags().String("content-type", "", "media type of a streamed answer: "+callback.NDJSON+" or "+callback.EventStream)
	split := cmd.Flags().String("split", "sentence", "how a streamed answer is cut into parts: sentence or none")
	oneOf(cmd, "kind", wire.WorkItemKinds)
	oneOf(cmd, "content-type", []string{"", callback.NDJSON, callback.EventStream})
	oneOf(cmd, "split", []string{"sentence", "none"})
	c.addStrictFlag(cmd)
	cmd.RunE = c.withConfig(func(ctx context.Context, args []string) (any, error) {
		platform, err := app.PlatformPolicy(c.cfg)
		if err != nil {
			return nil, err
		}
		var profile wire.GatewayProfile
		if *profileFile != "" {
			if profile, err = c.readProfile(ctx, *profileFile); err != nil {
				return nil, err
			}
		}
		body, err := c.readFile(ctx, args[0])
		if err != nil {
			return nil, err
		}
		if limit := team.DefaultRequestLimits().CallbackBodyBytes; int64(len(body)) > limit {
			return nil, fmt.Errorf("%s has %d bytes: use at most %d", args[0], len(body), limit)
		}
		byExtension := map[string]string{".ndjson": callback.NDJSON, ".sse": callback.EventStream}
		trial := callback.Trial{
			Kind: wire.WorkItemKind(*kind), Body: body, MediaType: cmp.Or(*contentType, byExtension[filepath.Ext(args[0])]),
			PerDelta: *split == "none", ChannelID: *channelID, // --split none: each delta is a part
		}
		result, err := callback.Try(trial, command.NewPolicy(profile, platform), time.Now())
		if err != nil {
			c.printError(inFile(args[0], body, err))
			return nil, errReported // an invalid body is the result of the check, not wrong usage
		}
		if err := c.checkWarnings(args[0], result.Warnings); err != nil {
			return nil, err
		}
		for _, e := range result.Entries {
			if err := c.printAs(e, func(w io.Writer) { writeRow(w, entryTitle(e)) }); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	return cmd
}
