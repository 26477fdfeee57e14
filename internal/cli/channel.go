package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/demo"
	"telapi/internal/endpoint"
)

func (c *cli) channelCommand() *cobra.Command {
	return group("channel", "Open, follow and end channels, and send messages",
		c.channelOpenCommand(), c.channelTailCommand(), c.channelSendCommand(), c.channelEndCommand())
}

func (c *cli) channelOpenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "open CHANNEL --team TEAM --endpoint ENDPOINT", Short: "Open a channel without a session",
		Example: "  telapi channel open call-4711 --team tm_… --endpoint ep_… --profile flow.json"}
	teamID := cmd.Flags().String("team", "", "team ID")
	endpointID := cmd.Flags().String("endpoint", "", "endpoint ID")
	profileFile := cmd.Flags().String("profile", "", "JSON file with the gateway profile (default: the endpoint's)")
	require(cmd, "team", "endpoint")
	profile := func(ctx context.Context) (jsontext.Value, error) {
		a, err := app.OpenAdmin(ctx, c.cfg, c.Err)
		if err != nil {
			return nil, err
		}
		defer a.Close()
		var e endpoint.Endpoint
		switch e, err = a.Endpoints.Store.Endpoint(ctx, *endpointID); {
		case err != nil:
			return nil, err
		case e.TeamID != *teamID:
			return nil, fmt.Errorf("endpoint %s belongs to another team", *endpointID)
		case *profileFile != "":
			if e.Profile, err = c.readProfile(ctx, *profileFile); err != nil {
				return nil, err
			}
		}
		return json.Marshal(e.Profile)
	}
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
		p, err := profile(ctx)
		if err != nil {
			return err
		}
		ch, err := r.Open(ctx, callruntime.OpenOptions{ChannelID: args[0], TeamID: *teamID, EndpointID: *endpointID, Profile: p})
		if err == nil {
			err = ch.Close(ctx) // releases the claim; the channel stays open
		}
		if err != nil {
			return err
		}
		return c.print(struct {
			ID         string `json:"id"`
			TeamID     string `json:"teamId"`
			EndpointID string `json:"endpointId"`
		}{ch.ID, ch.TeamID, ch.EndpointID})
	})
	return cmd
}

func (c *cli) channelTailCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tail CHANNEL", Short: "Print the entries of a channel's runtime stream, oldest first",
		Long: `Prints the entries of the runtime stream, starting with the oldest one kept, and exits after
the newest. With --follow, it continues until Ctrl-C or the end of the channel. It neither
claims the channel nor commits positions. A session's channel has the session's ID.`}
	from := cmd.Flags().String("from", "", "start at this entry ID")
	follow := cmd.Flags().Bool("follow", false, "continue with new entries")
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
		last, err := c.printEntries(ctx, r, args[0], *from)
		if err == nil && last == "" && *from == "" { // perhaps the ID is mistyped
			_, _ = fmt.Fprintf(c.Err, "channel %s has no entries: %s\n", args[0], howChannelsOpen)
		}
		if err != nil || !*follow {
			return err
		}
		ch := r.Observe(args[0], cmp.Or(last, *from))
		for {
			d, err := ch.Receive(ctx)
			switch {
			case ctx.Err() != nil || errors.Is(err, callruntime.ErrEnded):
				return nil //nolint:nilerr // the end of the channel or Ctrl-C is success
			case err == nil && d.Position != "":
				err = c.printEntry(d)
			}
			if err != nil {
				return err
			}
		}
	})
	return cmd
}

// printEntries prints the existing entries and returns the last position.
func (c *cli) printEntries(ctx context.Context, r *callruntime.Runtime, channelID, from string) (last string, err error) {
	const page = 200
	for {
		entries, err := r.Entries(ctx, channelID, from, page)
		if err != nil {
			return last, fmt.Errorf("read channel: %w", err)
		}
		for _, d := range entries {
			if err := c.printEntry(d); err != nil {
				return last, err
			}
			last = d.Position
		}
		if len(entries) < page {
			return last, nil
		}
		from = "(" + last
	}
}

// printEntry prints one entry as JSON with its ID, or as a line of text.
func (c *cli) printEntry(d callruntime.Delivery) error {
	if c.json {
		_, err := fmt.Fprintf(c.Out, `{"id":%q,%s`+"\n", d.Position, d.JSON[1:])
		return err
	}
	_, err := fmt.Fprintf(c.Out, "%s  %-24s %s\n", time.UnixMilli(d.Entry.At).Format("15:04:05.000"), d.Position, entryTitle(d.Entry))
	return err
}

func entryTitle(e wire.Entry) string {
	return printable(strings.Join(strings.Fields(demo.Title(e)), " "))
}

func (c *cli) channelSendCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "send CHANNEL --type chat --payload JSON", Short: "Send a message to the browser as the runtime would",
		Example: `  telapi channel send ses_… --type chat --payload '{"text":"Good day"}'`}
	kind := cmd.Flags().String("type", "chat", "message type")
	payload := cmd.Flags().String("payload", "", "JSON object with the content")
	require(cmd, "payload")
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
		m := wire.ChannelMessage{Type: wire.MessageType(*kind)}
		target, _ := m.Payload()
		if target == nil {
			types := slices.DeleteFunc(slices.Clone(wire.MessageTypes), func(t wire.MessageType) bool {
				p, _ := (&wire.ChannelMessage{Type: t}).Payload()
				return p == nil
			})
			return fmt.Errorf("invalid --type %q: use %s", *kind, orList(types))
		}
		*target = jsontext.Value(*payload)
		if !target.IsValid() || target.Kind() != '{' {
			return fmt.Errorf(`invalid --payload %q: use a JSON object such as {"text":"Good day"}`, *payload)
		}
		ch, err := r.Observe(args[0], ""), error(nil)
		if m.Type == wire.TypeAudio {
			err = ch.SendAudio(ctx, m.Audio)
		} else {
			err = ch.Send(ctx, m)
		}
		if err != nil {
			return err
		}
		return c.print(map[string]string{"channel": args[0], "status": "sent"})
	})
	return cmd
}

func (c *cli) channelEndCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "end CHANNEL", Short: "End a channel"}
	reason := cmd.Flags().String("reason", "ended by an operator", "reason reported to the runtime")
	cmd.RunE = c.withRuntime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
		if err := r.Observe(args[0], "").End(ctx, *reason); err != nil {
			return err
		}
		return c.print(map[string]string{"channel": args[0], "status": "ended"})
	})
	return cmd
}
