package cli

import (
	"context"
	"fmt"
	"io"
	"os"
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
	"telapi/internal/config"
	"telapi/internal/endpoint"
)

func (c *cli) callbackCommand() *cobra.Command {
	return group("callback", "What providers post back: try one, look at a body", c.callbackIssueCommand(), c.callbackLintCommand())
}

func (c *cli) callbackIssueCommand() *cobra.Command {
	var channelID, kind, scope string
	var ttl time.Duration
	cmd := &cobra.Command{Use: "issue --channel CHANNEL", Short: "Await a result on a channel and print the credential for it", Args: cobra.NoArgs,
		Example: "  telapi callback issue --channel call-4711 --kind llm --ttl 1m",
		RunE: c.work(func(ctx context.Context, _ []string) error {
			if err := c.checkKind(kind); err != nil {
				return err
			}
			if scopes := []string{string(callruntime.OneItem), string(callruntime.WholeChannel)}; !slices.Contains(scopes, scope) {
				return c.usage("there is no scope %q; scopes are %s", scope, strings.Join(scopes, ", "))
			}
			cfg, err := c.configure()
			if err != nil {
				return err
			}
			r, err := app.OpenRuntime(cfg)
			if err != nil {
				return err
			}
			defer r.Close()
			item, err := r.Observe(channelID, "").Await(ctx, callruntime.AwaitOptions{Kind: callruntime.WorkItemKind(kind), Scope: callruntime.Scope(scope), TTL: ttl})
			if err != nil {
				return err
			}
			url, expires := baseURL(cfg)+item.Path, item.ExpiresAt.UTC().Format(time.RFC3339)
			return c.print(map[string]string{"token": item.Token, "url": url, "workItemId": item.ID, "expiresAt": expires}, func(w io.Writer) {
				fields("token", item.Token, "url", url, "work item", item.ID, "expires", expires)(w)
				_, _ = fmt.Fprintf(w, "\ncurl -i '%s' -H 'token: %s' -H 'Content-Type: application/json' \\\n  -d '%s'\n", url, item.Token, sampleBody(kind, channelID))
			})
		})}
	cmd.Flags().StringVar(&channelID, "channel", "", "the channel's id")
	cmd.Flags().StringVar(&kind, "kind", string(callback.Bot), "who answers: "+joined(callback.Kinds))
	cmd.Flags().StringVar(&scope, "scope", string(callruntime.OneItem), "work_item: for one answer, in its turn; channel: for any number")
	cmd.Flags().DurationVar(&ttl, "ttl", callruntime.DefaultTTL, "how long an answer is awaited")
	must(cmd.MarkFlagRequired("channel"))
	return cmd
}

func (c *cli) checkKind(kind string) error {
	if !slices.Contains(callback.Kinds, callback.Kind(kind)) {
		return c.usage("there is no kind %q; kinds are %s", kind, joined(callback.Kinds))
	}
	return nil
}

// baseURL is where a provider on this machine reaches the service.
func baseURL(cfg config.Config) string {
	scheme := "http"
	if cfg.APITLSEnabled {
		scheme = "https"
	}
	if cfg.PublicURL != "" {
		return cfg.PublicURL
	}
	return fmt.Sprintf("%s://localhost:%d", scheme, cfg.Port)
}

func sampleBody(kind, channelID string) string {
	switch callback.Kind(kind) {
	case callback.LLM:
		return `{"content":"Hello"}`
	case callback.Tool:
		return `{"result":"done"}`
	default:
		return fmt.Sprintf(`{"conversation":{"identifier":{"id":%q}},"messages":{"message":[{"content":{"textMessage":{"textPlain":"Hello"}}}]}}`, channelID)
	}
}

func (c *cli) callbackLintCommand() *cobra.Command {
	var profileFile, kind, channelID string
	cmd := &cobra.Command{Use: "lint BODY.json", Short: "Print what a provider's body would put on the stream", Args: cobra.ExactArgs(1),
		Long: `Reads a callback body from a file, or from standard input if the name is -, and prints the
entries it would put on a conversation's stream, one per line, with every command that would
be denied and why. A body that would be refused is reported with all its issues. It needs no
server. COMMANDS_DISABLED and TRANSFER_ALLOWED_TARGETS hold as they would there.`,
		Example: "  telapi callback lint answer.json --profile flow.json"}
	cmd.Flags().StringVar(&profileFile, "profile", "", "JSON file with the gatewayProfile; without it nothing is permitted")
	cmd.Flags().StringVar(&kind, "kind", string(callback.Bot), "whose body it is: "+joined(callback.Kinds))
	cmd.Flags().StringVar(&channelID, "channel", "", "the channel it would be posted for; by default the one it names")
	cmd.RunE = c.work(func(_ context.Context, args []string) error {
		if err := c.checkKind(kind); err != nil {
			return err
		}
		policy, err := c.lintPolicy(profileFile)
		if err != nil {
			return err
		}
		body, err := c.read(args[0])
		if err != nil {
			return err
		}
		if channelID == "" {
			channelID = conversationOf(body)
		}
		result, err := callback.Kind(kind).Parse(body, channelID)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		base := wire.Entry{ChannelID: channelID, At: time.Now().UnixMilli(), Source: callback.Kind(kind).Source()}
		for _, e := range result.Entries(base, policy) {
			if err := c.print(e, func(w io.Writer) { _, _ = fmt.Fprintln(w, describe(e)) }); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

func (c *cli) lintPolicy(profileFile string) (*command.Policy, error) {
	cfg, err := c.configure()
	if err != nil {
		return nil, err
	}
	platform, err := app.Platform(cfg)
	if err != nil {
		return nil, err
	}
	var profile wire.GatewayProfile
	if profileFile != "" {
		raw, err := c.read(profileFile)
		if err != nil {
			return nil, err
		}
		if profile, err = endpoint.ParseProfile(raw); err != nil {
			return nil, fmt.Errorf("%s: %w", profileFile, err)
		}
	}
	return command.NewPolicy(profile, platform), nil
}

// read takes - for standard input.
func (c *cli) read(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(c.In)
	}
	return os.ReadFile(name)
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
