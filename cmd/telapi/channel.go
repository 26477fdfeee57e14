package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/calls"
	"telapi/internal/demo"
)

// channelCommand is also called session: a session's channel has its ID.
func (c *cli) channelCommand() *cobra.Command {
	cmd := group("channel", "List, open, follow and end channels, and send messages",
		c.channelListCommand(), c.channelOpenCommand(), c.channelTailCommand(), c.channelSendCommand(), c.channelEndCommand())
	cmd.Aliases = []string{"session"}
	return cmd
}

func (c *cli) channelOpenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "open CHANNEL --team TEAM --endpoint ENDPOINT", Short: "Open a channel without a session",
		Example: "  telapi channel open call-4711 --team tm_… --endpoint ep_… --profile profile.json"}
	teamID := cmd.Flags().String("team", "", "team ID")
	endpointID := cmd.Flags().String("endpoint", "", "endpoint ID")
	profileFile := cmd.Flags().String("profile", "", "JSON file with the gateway profile (default: the endpoint's)")
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *calls.Runtime, args []string) (any, error) {
		a, err := app.OpenAdmin(ctx, c.cfg, c.Err, app.Existing)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		e, err := a.Endpoints.Store.Endpoint(ctx, *endpointID)
		err = withID(err, "endpoint", *endpointID)
		if err == nil && e.TeamID != *teamID {
			err = fmt.Errorf("endpoint %s belongs to another team than %s: telapi endpoint show %s prints its team", *endpointID, *teamID, *endpointID)
		}
		if err == nil && *profileFile != "" {
			e.Profile, err = c.readProfile(ctx, *profileFile, false)
		}
		if err != nil {
			return nil, err
		}
		profile, err := json.Marshal(e.Profile)
		if err != nil {
			return nil, err
		}
		ch, err := r.Open(ctx, calls.Claim{}, wire.Open{Request: wire.Request{Channel: args[0]}, Team: *teamID, Endpoint: *endpointID, Profile: profile})
		if err != nil {
			return nil, err
		}
		return struct {
			ID         string `json:"id"`
			TeamID     string `json:"teamId"`
			EndpointID string `json:"endpointId"`
		}{ch.ID, ch.TeamID, ch.EndpointID}, ch.Close(ctx) // releases the claim; the channel stays open
	})
	return cmd
}

func (c *cli) channelListCommand() *cobra.Command {
	return &cobra.Command{Use: "list", Short: "List the live channels with their claims and backlogs",
		Long: `Lists open channels, and ended ones whose runtime has not committed all entries, the oldest
first. A session waits for a runtime if a browser is connected and the claim is none or
expired.`,
		RunE: c.withConfig(func(ctx context.Context, _ []string) (any, error) {
			list, err := app.ListChannels(ctx, c.cfg, c.Err)
			if err != nil {
				return nil, err
			}
			return newTable(list, "id", "state", "browser", "claim", "runtime", "lastActivity", "backlogEntries"), nil
		})}
}

// entryID matches an entry ID and the empty string.
var entryID = regexp.MustCompile(`^(\d{1,18}(-\d{1,18})?)?$`)

func (c *cli) channelTailCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tail CHANNEL", Short: "Print the entries of a channel's runtime stream, oldest first",
		Long: `Prints the entries of the runtime stream, starting with the oldest one kept, and exits after
the newest. With --follow, it continues until Ctrl-C or the end of the channel. It neither
claims the channel nor commits positions. A session's channel has the session's ID.
An answer that is parked, because it arrived before those of earlier work items, is not on
the stream yet; tail reports it on stderr.`}
	from := cmd.Flags().String("from", "", "start at this entry ID")
	follow := cmd.Flags().Bool("follow", false, "continue with new entries")
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *calls.Runtime, args []string) (any, error) {
		if !entryID.MatchString(*from) {
			return nil, c.usageError("invalid --from %q: use the ID of an entry, such as 12-1794804882000", *from)
		}
		last, err := c.printEntries(ctx, r, args[0], *from)
		if err != nil {
			return nil, err
		}
		ch := r.Observe(args[0], cmp.Or(last.Position, *from))
		reported := map[string]bool{}
		if err := c.printParked(ctx, ch, reported); err != nil || !*follow || last.Entry.Kind == wire.KindChannelEnded {
			return nil, err
		}
		for {
			receiving, cancel := context.WithTimeout(ctx, parkedInterval)
			err := c.printUntil(receiving, ch)
			cancel()
			if ctx.Err() != nil || errors.Is(err, calls.ErrEnded) {
				return nil, nil //nolint:nilerr // the end of the channel or Ctrl-C is success
			}
			if err == nil {
				err = c.printParked(ctx, ch, reported)
			}
			if err != nil {
				return nil, err
			}
		}
	})
	return cmd
}

// printUntil prints new entries until ctx ends.
func (c *cli) printUntil(ctx context.Context, ch *calls.Channel) error {
	for {
		delivery, err := ch.Receive(ctx)
		if err == nil && delivery.Position != "" { // not audio
			err = c.printEntry(delivery)
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return nil //nolint:nilerr // the end of ctx is not a failure
		case err != nil:
			return err
		}
	}
}

// parkedInterval is how often tail looks for parked answers. They are not on the
// stream.
const parkedInterval = time.Second

// printParked prints the parked answers that are not reported yet to stderr.
func (c *cli) printParked(ctx context.Context, ch *calls.Channel, reported map[string]bool) error {
	items, err := ch.WorkItems(ctx)
	if err != nil {
		return fmt.Errorf("read work items: %w", err)
	}
	var open []string
	for _, item := range items {
		if !item.Parked && item.Scope == wire.ScopeItem {
			open = append(open, item.WorkItemID)
		}
	}
	for _, item := range items {
		if item.Parked && !reported[item.WorkItemID] {
			reported[item.WorkItemID] = true
			_, _ = fmt.Fprintf(c.Err, "%s the answer to work item %s (%s) waits for earlier work items. Open: %s\n",
				c.paint(c.Err, yellow, "parked:"), item.WorkItemID, item.Kind, joinWords(open, "and"))
		}
	}
	return nil
}

// printEntries prints the existing entries and returns the last one.
func (c *cli) printEntries(ctx context.Context, r *calls.Runtime, channelID, from string) (last calls.Delivery, err error) {
	const pageSize = 200
	for {
		entries, err := r.Entries(ctx, channelID, from, pageSize)
		if err != nil {
			return last, fmt.Errorf("read channel: %w", err)
		}
		for _, delivery := range entries {
			if err := c.printEntry(delivery); err != nil {
				return last, err
			}
			last = delivery
		}
		if len(entries) < pageSize {
			return last, nil
		}
		from = "(" + last.Position // exclusive, as in Redis
	}
}

// printEntry prints one entry as JSON with its ID, or as a line of text.
func (c *cli) printEntry(d calls.Delivery) error {
	if c.json {
		_, err := fmt.Fprintf(c.Out, `{"id":%q,%s`+"\n", d.Position, d.JSON[1:]) // without its opening brace
		return err
	}
	at := time.UnixMilli(d.Entry.At).Format("15:04:05.000")
	_, err := fmt.Fprintf(c.Out, "%s  %-24s %s\n", c.paint(c.Out, faint, at), d.Position, entryTitle(d.Entry))
	return err
}

func entryTitle(e wire.Entry) string {
	return printable(strings.Join(strings.Fields(demo.Title(e)), " "))
}

func (c *cli) channelSendCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "send CHANNEL --payload JSON [--type TYPE]", Short: "Send a message to the browser as the runtime would",
		Example: `  telapi channel send ses_… --type chat --payload '{"text":"Good day"}'`}
	messageType := cmd.Flags().String("type", "chat", "message type")
	payload := cmd.Flags().String("payload", "", "JSON object with the content")
	oneOf(cmd, "type", slices.DeleteFunc(slices.Clone(wire.MessageTypes), func(t wire.MessageType) bool {
		p, _ := (&wire.ChannelMessage{Type: t}).Payload()
		return p == nil // such as ping, which has no payload
	}))
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *calls.Runtime, args []string) (any, error) {
		message := wire.ChannelMessage{Type: wire.MessageType(*messageType)}
		content, _ := message.Payload()
		*content = jsontext.Value(*payload)
		if !content.IsValid() || content.Kind() != '{' {
			return nil, c.usageError(`invalid --payload %q: use a JSON object such as {"text":"Good day"}`, *payload)
		}
		ch, sent := r.Observe(args[0], ""), map[string]string{"channel": args[0], "status": "sent"}
		if message.Type == wire.TypeAudio {
			return sent, ch.SendAudio(ctx, message.Audio)
		}
		return sent, ch.Send(ctx, message)
	})
	return cmd
}

func (c *cli) channelEndCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "end CHANNEL", Short: "End a channel"}
	reason := cmd.Flags().String("reason", "ended by an operator", "reason reported to the runtime")
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *calls.Runtime, args []string) (any, error) {
		return map[string]string{"channel": args[0], "status": "ended"}, r.Observe(args[0], "").End(ctx, *reason)
	})
	return cmd
}

func (c *cli) callbackIssueCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "issue --channel CHANNEL", Short: "Create a work item and print its credential",
		Long: `Creates a work item on a channel and prints its credential, with a curl command that posts
a result. The URL uses PUBLIC_URL, or TELAPI_HOST and TELAPI_PORT: set them as for the server.

Results are delivered in the order of their work items. Until this one is answered or expires,
it blocks the results of later work items on the channel. --scope channel blocks none.`,
		Example: "  telapi callback issue --channel call-4711 --kind llm --ttl 1m"}
	channelID := cmd.Flags().String("channel", "", "channel ID")
	kind := cmd.Flags().String("kind", string(wire.BotItem), "kind of provider: "+joinWords(wire.WorkItemKinds, "or"))
	scopes := map[string]wire.Scope{"work_item": wire.ScopeItem, "channel": wire.ScopeChannel}
	scope := cmd.Flags().String("scope", "work_item", "work_item: valid for one callback; channel: valid for any number")
	ttl := cmd.Flags().Duration("ttl", calls.DefaultTTL, "time until the work item expires")
	oneOf(cmd, "kind", wire.WorkItemKinds)
	oneOf(cmd, "scope", []string{"work_item", "channel"})
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *calls.Runtime, _ []string) (any, error) {
		if err := c.checkChannelID(*channelID); err != nil {
			return nil, err
		}
		if *ttl < time.Millisecond || *ttl > calls.MaxTTL {
			return nil, c.usageError("invalid --ttl %q: use a duration from 1ms to %s", *ttl, calls.MaxTTL)
		}
		item, err := r.Observe(*channelID, "").Await(ctx, calls.AwaitOptions{
			Kind: wire.WorkItemKind(*kind), Scope: scopes[*scope], TTL: *ttl,
		})
		if err != nil {
			return nil, withChannelID(err, *channelID)
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
			if scopes[*scope] == wire.ScopeItem {
				_, _ = fmt.Fprintf(c.Out, "\nThe work item blocks later ones on this channel until it is answered, or expires at %s.\n", item.ExpiresAt.Format(time.TimeOnly))
			}
		}
		return nil, err
	})
	return cmd
}

// baseURL returns PUBLIC_URL or the URL of the server on this machine.
func (c *cli) baseURL() string {
	return cmp.Or(c.cfg.PublicURL, c.cfg.LocalURL(c.cfg.Port))
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
