package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/bot"
	"telapi/internal/command"
	"telapi/internal/endpoint"
)

func (c *cli) callbackCommand() *cobra.Command {
	return group("callback", "Test callbacks of providers", c.callbackIssueCommand(), c.callbackLintCommand())
}

func (c *cli) callbackIssueCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "issue --channel CHANNEL", Short: "Create a work item and print its credential",
		Long: `Creates a work item on a channel and prints its credential, with a curl command that posts
a result. The URL uses PUBLIC_URL or TELAPI_PORT: set them as for the server.`,
		Example: "  telapi callback issue --channel call-4711 --kind llm --ttl 1m"}
	channelID := cmd.Flags().String("channel", "", "channel ID")
	kind := cmd.Flags().String("kind", string(wire.BotItem), "kind of provider: "+orList(wire.WorkItemKinds))
	scope := cmd.Flags().String("scope", string(callruntime.ScopeWorkItem), "work_item: valid for one callback; channel: valid for any number")
	ttl := cmd.Flags().Duration("ttl", callruntime.DefaultTTL, "time until the work item expires")
	require(cmd, "channel")
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *callruntime.Runtime, _ []string) error {
		if err := checkFlag(c, "kind", *kind, wire.WorkItemKinds); err != nil {
			return err
		}
		if err := checkFlag(c, "scope", *scope, []callruntime.Scope{callruntime.ScopeWorkItem, callruntime.ScopeChannel}); err != nil {
			return err
		}
		item, err := r.Observe(*channelID, "").Await(ctx, callruntime.AwaitOptions{
			Kind: wire.WorkItemKind(*kind), Scope: callruntime.Scope(*scope), TTL: *ttl,
		})
		if err != nil {
			return err
		}
		url := c.baseURL() + item.Path
		err = c.print(struct {
			Token      string    `json:"token"`
			URL        string    `json:"url"`
			WorkItemID string    `json:"workItemId"`
			ExpiresAt  time.Time `json:"expiresAt"`
		}{item.Token, url, item.ID, item.ExpiresAt})
		if !c.json {
			_, _ = fmt.Fprintf(c.Out, "\ncurl -i '%s' -H 'token: %s' -H 'Content-Type: application/json' \\\n  -d '%s'\n",
				url, item.Token, sampleBody(wire.WorkItemKind(*kind), *channelID))
		}
		return err
	})
	return cmd
}

// baseURL returns the URL of the server on this machine.
func (c *cli) baseURL() string {
	switch {
	case c.cfg.PublicURL != "":
		return c.cfg.PublicURL
	case c.cfg.APITLSEnabled:
		return fmt.Sprintf("https://localhost:%d", c.cfg.Port)
	}
	return fmt.Sprintf("http://localhost:%d", c.cfg.Port)
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
with the reason. An invalid body is reported with all its issues. No server is needed.
COMMANDS_DISABLED and TRANSFER_ALLOWED_TARGETS apply as on the server.`,
		Example: "  telapi callback lint answer.json --profile flow.json"}
	profileFile := cmd.Flags().String("profile", "", "JSON file with the gateway profile (default: no command is allowed)")
	kind := cmd.Flags().String("kind", string(wire.BotItem), "kind of provider: "+orList(wire.WorkItemKinds))
	channelID := cmd.Flags().String("channel", "", "channel ID (default: the one in the body)")
	cmd.RunE = c.withConfig(func(ctx context.Context, args []string) error {
		if err := checkFlag(c, "kind", *kind, wire.WorkItemKinds); err != nil {
			return err
		}
		platform, err := app.Platform(c.cfg)
		if err != nil {
			return err
		}
		var profile wire.GatewayProfile
		if *profileFile != "" {
			if profile, err = c.readProfile(ctx, *profileFile); err != nil {
				return err
			}
		}
		body, err := c.readFile(ctx, args[0])
		if err != nil {
			return err
		}
		if limit := endpoint.PublishedLimits().CallbackBodyBytes; int64(len(body)) > limit {
			return fmt.Errorf("%s has %d bytes: use at most %d", args[0], len(body), limit)
		}
		if *channelID == "" {
			*channelID = bodyChannelID(body)
		}
		result, err := bot.Parse(wire.WorkItemKind(*kind), body, *channelID)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		base := wire.Entry{ChannelID: *channelID, At: time.Now().UnixMilli(), Source: wire.WorkItemKind(*kind).Source()}
		for _, e := range result.Entries(base, command.NewPolicy(profile, platform)) {
			if err := c.printAs(e, func(w io.Writer) { writeRow(w, entryTitle(e)) }); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// bodyChannelID returns the channel ID in a bot's callback body. Other bodies have none.
func bodyChannelID(body []byte) string {
	var b struct {
		Conversation struct {
			Identifier wire.Identifier `json:"identifier"`
		} `json:"conversation"`
	}
	if json.Unmarshal(body, &b) != nil || b.Conversation.Identifier.ID == "" {
		return "channel"
	}
	return b.Conversation.Identifier.ID
}
