package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/callback"
	"telapi/internal/command"
	"telapi/internal/endpoint"
)

func (c *cli) callbackCommand() *cobra.Command {
	return group("callback", "What providers post back: try one, look at a body", c.callbackIssueCommand(), c.callbackLintCommand())
}

func (c *cli) callbackIssueCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "issue --channel CHANNEL", Short: "Await a result on a channel and print the credential for it", Args: cobra.NoArgs,
		Long: `Awaits a result on a channel and prints the credential for it, with a curl line that posts
one. The URL is that of PUBLIC_URL or TELAPI_PORT: set them here as for the server.`,
		Example: "  telapi callback issue --channel call-4711 --kind llm --ttl 1m"}
	channelID := cmd.Flags().String("channel", "", "the channel's id")
	kind := cmd.Flags().String("kind", string(wire.BotItem), "who answers: "+kinds)
	scope := cmd.Flags().String("scope", string(callruntime.ScopeWorkItem), "work_item: for one answer, in its turn; channel: for any number")
	ttl := cmd.Flags().Duration("ttl", callruntime.DefaultTTL, "how long an answer is awaited")
	needs(cmd, "channel")
	cmd.RunE = c.runtime(func(ctx context.Context, r *callruntime.Runtime, _ []string) error {
		if err := c.checkKind(*kind); err != nil {
			return err
		}
		if scopes := []string{string(callruntime.ScopeWorkItem), string(callruntime.ScopeChannel)}; !slices.Contains(scopes, *scope) {
			return c.usage("there is no scope %q; scopes are %s", *scope, strings.Join(scopes, ", "))
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

const kinds = string(wire.BotItem + ", " + wire.LLMItem + " or " + wire.ToolItem)

func (c *cli) checkKind(kind string) error {
	if !slices.Contains(wire.WorkItemKinds, wire.WorkItemKind(kind)) {
		return c.usage("there is no kind %q; it is %s", kind, kinds)
	}
	return nil
}

// baseURL is where a provider on this machine reaches the service.
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
	cmd := &cobra.Command{Use: "lint BODY.json", Short: "Print what a provider's body would put on the stream", Args: cobra.ExactArgs(1),
		Long: `Reads a callback body from a file, or from standard input if the name is -, and prints the
entries it would put on a conversation's stream, one per line, with every command that would
be denied and why. A body that would be refused is reported with all its issues. It needs no
server. COMMANDS_DISABLED and TRANSFER_ALLOWED_TARGETS hold as they would there.`,
		Example: "  telapi callback lint answer.json --profile flow.json"}
	profileFile := cmd.Flags().String("profile", "", "JSON file with the gatewayProfile; without it nothing is permitted")
	kind := cmd.Flags().String("kind", string(wire.BotItem), "whose body it is: "+kinds)
	channelID := cmd.Flags().String("channel", "", "the channel it would be posted for; by default the one it names")
	cmd.RunE = c.tool(func(ctx context.Context, args []string) error {
		if err := c.checkKind(*kind); err != nil {
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
		body, err := c.read(ctx, args[0])
		if err != nil {
			return err
		}
		if limit := endpoint.PublishedLimits().CallbackBodyBytes; int64(len(body)) > limit {
			return fmt.Errorf("%s: a body has %d bytes at the most, and this one has %d", args[0], limit, len(body))
		}
		if *channelID == "" {
			*channelID = conversationOf(body)
		}
		result, err := callback.Parse(wire.WorkItemKind(*kind), body, *channelID)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		base := wire.Entry{ChannelID: *channelID, At: time.Now().UnixMilli(), Source: wire.WorkItemKind(*kind).Source()}
		for _, e := range result.Entries(base, command.NewPolicy(profile, platform)) {
			if err := c.printAs(e, func(w io.Writer) { writeRow(w, describe(e)) }); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// conversationOf is the channel that a body names, or one that no body does.
func conversationOf(body []byte) string {
	var named struct {
		Conversation struct {
			Identifier wire.Identifier `json:"identifier"`
		} `json:"conversation"`
	}
	if json.Unmarshal(body, &named) != nil || named.Conversation.Identifier.ID == "" {
		return "channel"
	}
	return named.Conversation.Identifier.ID
}
