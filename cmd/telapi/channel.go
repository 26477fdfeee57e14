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

const fromOldest = "" // position of an observer that does not read entries

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
	cmd.RunE = c.withChannel(firstArgument, func(ctx context.Context, r *calls.Runtime, channelID string) (any, error) {
		a, err := app.OpenAdmin(ctx, c.cfg, c.Err, app.Existing)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		e, err := a.Endpoints.Store.Endpoint(ctx, *endpointID)
		switch {
		case err != nil:
			return nil, withID(err, "endpoint", *endpointID)
		case e.TeamID != *teamID:
			return nil, fmt.Errorf("endpoint %s belongs to another team than %s: telapi endpoint show %s prints its team", *endpointID, *teamID, *endpointID)
		case *profileFile != "":
			if e.Profile, err = c.readProfile(ctx, *profileFile); err != nil {
				return nil, err
			}
		}
		profile, err := json.Marshal(e.Profile)
		if err != nil {
			return nil, err
		}
		newClaim := calls.Claim{}
		ch, err := r.Open(ctx, newClaim, wire.Open{Request: wire.Request{Channel: channelID}, Team: *teamID, Endpoint: *endpointID, Profile: profile})
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

// entryID matches the empty string, and an entry ID with or without its time.
var entryID = regexp.MustCompile(`^(\d{1,18}(-\d{1,18})?)?$`)

func (c *cli) channelTailCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tail CHANNEL", Short: "Print the entries of a channel's runtime stream, oldest first",
		Long: `Prints the entries of the runtime stream, starting with the oldest one kept, and exits after
the newest. With --follow, it continues until Ctrl-C or the end of the channel. It neither
claims the channel nor commits positions. A session's channel has the session's ID.
An answer that is parked, because it arrived before those of earlier work items, is not on
the stream yet; tail reports it on stderr.`}
	from := cmd.Flags().String("from", "", "ID of the first entry")
	follow := cmd.Flags().Bool("follow", false, "continue with new entries")
	cmd.RunE = c.withChannel(firstArgument, func(ctx context.Context, r *calls.Runtime, channelID string) (any, error) {
		if !entryID.MatchString(*from) {
			return nil, c.usageError("invalid --from %q: use the ID of an entry, such as 12-1794804882000", *from)
		}
		last, err := c.printEntries(ctx, r, channelID, *from)
		if err != nil {
			return nil, err
		}
		ch := r.Observe(channelID, cmp.Or(last.Position, *from)) // *from if its entry does not exist yet
		reported := map[string]bool{}
		for {
			if err := c.printParked(ctx, ch, reported); err != nil || !*follow || last.Entry.Kind == wire.KindChannelEnded {
				return nil, err
			}
			receiving, cancel := context.WithTimeout(ctx, parkedInterval)
			err := c.printUntil(receiving, ch)
			cancel()
			switch {
			case ctx.Err() != nil, errors.Is(err, calls.ErrEnded):
				return nil, nil //nolint:nilerr // the end of the channel or Ctrl-C is success
			case err != nil:
				return nil, err
			}
		}
	})
	return cmd
}

// printUntil prints new entries until ctx ends.
func (c *cli) printUntil(ctx context.Context, ch *calls.Channel) error {
	for ctx.Err() == nil {
		delivery, err := ch.Receive(ctx)
		if err == nil && delivery.Position != "" { // an entry, not audio
			err = c.printEntry(delivery)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// parkedInterval is how often tail looks for parked answers, which are not on the stream.
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
	hasNoPayload := func(t wire.MessageType) bool { // such as ping
		content, _ := (&wire.ChannelMessage{Type: t}).Payload()
		return content == nil
	}
	oneOf(cmd, "type", slices.DeleteFunc(slices.Clone(wire.MessageTypes), hasNoPayload))
	cmd.RunE = c.withChannel(firstArgument, func(ctx context.Context, r *calls.Runtime, channelID string) (any, error) {
		message := wire.ChannelMessage{Type: wire.MessageType(*messageType)}
		content, _ := message.Payload()
		*content = jsontext.Value(*payload)
		if !content.IsValid() || content.Kind() != '{' {
			return nil, c.usageError(`invalid --payload %q: use a JSON object such as {"text":"Good day"}`, *payload)
		}
		ch := r.Observe(channelID, fromOldest)
		result := map[string]string{"channel": channelID, "status": "sent"}
		if message.Type == wire.TypeAudio {
			return result, ch.SendAudio(ctx, message.Audio)
		}
		return result, ch.Send(ctx, message)
	})
	return cmd
}

func (c *cli) channelEndCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "end CHANNEL", Short: "End a channel"}
	reason := cmd.Flags().String("reason", "ended by an operator", "reason reported to the runtime")
	cmd.RunE = c.withChannel(firstArgument, func(ctx context.Context, r *calls.Runtime, channelID string) (any, error) {
		return map[string]string{"channel": channelID, "status": "ended"}, r.Observe(channelID, fromOldest).End(ctx, *reason)
	})
	return cmd
}
