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
	"telapi/internal/fault"
)

// withRuntime runs body with a call runtime's access to the store.
func (c *cli) withRuntime(body func(r *callruntime.Runtime) error) error {
	r, err := app.OpenRuntime(c.cfg)
	if err != nil {
		return err
	}
	defer r.Close()
	return body(r)
}

func (c *cli) runtime(body func(ctx context.Context, r *callruntime.Runtime, args []string) error) runE {
	return c.tool(func(ctx context.Context, args []string) error {
		err := c.withRuntime(func(r *callruntime.Runtime) error { return body(ctx, r, args) })
		if errors.Is(err, callruntime.ErrLost) {
			return fmt.Errorf("%w: %s", err, whenChannelsBegin)
		}
		return err
	})
}

const whenChannelsBegin = "a session's begins when its browser connects, and telapi channel open begins one without a session"

func (c *cli) channelCommand() *cobra.Command {
	return group("channel", "Live conversations: open, watch, speak in and end one",
		c.channelOpenCommand(), c.channelTailCommand(), c.channelSendCommand(), c.channelEndCommand())
}

func (c *cli) channelOpenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "open CHANNEL --team TEAM --endpoint ENDPOINT", Short: "Open a channel that has no browser session", Args: cobra.ExactArgs(1),
		Example: "  telapi channel open call-4711 --team tm_… --endpoint ep_… --profile flow.json"}
	teamID := cmd.Flags().String("team", "", "the team's id")
	endpointID := cmd.Flags().String("endpoint", "", "the endpoint's id")
	profileFile := cmd.Flags().String("profile", "", "JSON file with the gatewayProfile; without it the endpoint's holds")
	needs(cmd, "team", "endpoint")
	cmd.RunE = c.admin(func(ctx context.Context, a *app.Admin, args []string) error {
		e, err := a.Endpoints.Store.Endpoint(ctx, *endpointID)
		if err == nil && e.TeamID != *teamID {
			err = errors.New("the endpoint is another team's")
		}
		if err == nil && *profileFile != "" {
			e.Profile, err = c.readProfile(ctx, *profileFile)
		}
		if err != nil {
			return err
		}
		profile, err := json.Marshal(e.Profile)
		if err != nil {
			return err
		}
		return c.withRuntime(func(r *callruntime.Runtime) error {
			ch, err := r.Open(ctx, callruntime.OpenOptions{ChannelID: args[0], TeamID: *teamID, EndpointID: *endpointID, Profile: profile})
			if err == nil {
				err = ch.Close(ctx) // the channel goes on without us
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
	})
	return cmd
}

func (c *cli) channelTailCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "tail CHANNEL", Short: "Print what is on a channel's stream towards the runtime, oldest first", Args: cobra.ExactArgs(1),
		Long: `Prints the entries of a channel as the call runtime gets them, beginning with the oldest
that is kept, and ends when it has caught up, or with --follow goes on until Ctrl-C or
the channel's end. It claims and commits nothing. A session's channel has the session's id.`}
	from := cmd.Flags().String("from", "", "begin with the entry of this id")
	follow := cmd.Flags().Bool("follow", false, "go on with what happens from now on")
	cmd.RunE = c.runtime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
		last, err := c.tail(ctx, r, args[0], *from)
		if err == nil && last == "" && *from == "" { // which a name that was typed wrongly looks like, too
			_, _ = fmt.Fprintf(c.Err, "nothing is on channel %s: %s\n", args[0], whenChannelsBegin)
		}
		if err != nil || !*follow {
			return err
		}
		ch := r.Observe(args[0], cmp.Or(last, *from))
		for {
			d, err := ch.Receive(ctx)
			switch {
			case ctx.Err() != nil || errors.Is(err, callruntime.ErrEnded):
				return nil //nolint:nilerr // what was asked for is done
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

// tail prints what is there and returns where it ended.
func (c *cli) tail(ctx context.Context, r *callruntime.Runtime, channelID, from string) (last string, err error) {
	const step = 200
	for {
		batch, err := r.Entries(ctx, channelID, from, step)
		if err != nil {
			return last, fmt.Errorf("read the channel: %w", err)
		}
		for _, d := range batch {
			if err := c.printEntry(d); err != nil {
				return last, err
			}
			last = d.Position
		}
		if len(batch) < step {
			return last, nil
		}
		from = "(" + last
	}
}

// printEntry shows one entry: its JSON with its id, or a line to read.
func (c *cli) printEntry(d callruntime.Delivery) error {
	if c.json {
		_, err := fmt.Fprintf(c.Out, `{"id":%q,%s`+"\n", d.Position, d.JSON[1:])
		return err
	}
	_, err := fmt.Fprintf(c.Out, "%s  %-24s %s\n", time.UnixMilli(d.Entry.At).Format("15:04:05.000"), d.Position, describe(d.Entry))
	return err
}

func describe(e wire.Entry) string {
	return printable(strings.Join(strings.Fields(demo.Title(e)), " "))
}

func (c *cli) channelSendCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "send CHANNEL --type chat --payload JSON", Short: "Send a message to the browser, on behalf of the runtime", Args: cobra.ExactArgs(1),
		Example: `  telapi channel send ses_… --type chat --payload '{"text":"Good day"}'`}
	kind := cmd.Flags().String("type", "chat", "type of the message")
	payload := cmd.Flags().String("payload", "", "the object that the type carries")
	needs(cmd, "payload")
	cmd.RunE = c.runtime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
		m := wire.ChannelMessage{Type: wire.MessageType(*kind)}
		to, _ := m.Payload()
		if to == nil {
			return fmt.Errorf("there is nothing to send of type %q; types are %s", *kind, fault.Join(sendable()))
		}
		*to = jsontext.Value(*payload)
		if !to.IsValid() || to.Kind() != '{' {
			return errors.New(`the payload is no JSON object such as {"text":"Good day"}`)
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

// sendable are the types that carry something.
func sendable() []wire.MessageType {
	return slices.DeleteFunc(slices.Clone(wire.MessageTypes), func(t wire.MessageType) bool {
		to, _ := (&wire.ChannelMessage{Type: t}).Payload()
		return to == nil
	})
}

func (c *cli) channelEndCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "end CHANNEL", Short: "End a channel for everybody", Args: cobra.ExactArgs(1)}
	reason := cmd.Flags().String("reason", "ended by an operator", "what the runtime is told")
	cmd.RunE = c.runtime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
		if err := r.Observe(args[0], "").End(ctx, *reason); err != nil {
			return err
		}
		return c.print(map[string]string{"channel": args[0], "status": "ended"})
	})
	return cmd
}
