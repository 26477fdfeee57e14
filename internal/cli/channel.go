package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/endpoint"
)

// runtime runs a command's body with a call runtime's access to the store.
func (c *cli) runtime(body func(ctx context.Context, r *callruntime.Runtime, args []string) error) func(*cobra.Command, []string) error {
	return c.work(func(ctx context.Context, args []string) error {
		cfg, err := c.configure()
		if err != nil {
			return err
		}
		r, err := app.OpenRuntime(cfg)
		if err != nil {
			return err
		}
		defer r.Close()
		return body(ctx, r, args)
	})
}

func (c *cli) channelCommand() *cobra.Command {
	return group("channel", "Live conversations: open, watch, speak in and end one",
		c.channelOpenCommand(), c.channelTailCommand(), c.channelSendCommand(), c.channelEndCommand())
}

func (c *cli) channelOpenCommand() *cobra.Command {
	var teamID, endpointID, profileFile string
	cmd := &cobra.Command{Use: "open CHANNEL --team TEAM --endpoint ENDPOINT", Short: "Open a channel that has no browser session", Args: cobra.ExactArgs(1),
		Example: "  telapi channel open call-4711 --team tm_… --endpoint ep_… --profile flow.json"}
	cmd.Flags().StringVar(&teamID, "team", "", "the team's id")
	cmd.Flags().StringVar(&endpointID, "endpoint", "", "the endpoint's id")
	cmd.Flags().StringVar(&profileFile, "profile", "", "JSON file with the gatewayProfile; without it the endpoint's holds")
	must(cmd.MarkFlagRequired("team"))
	must(cmd.MarkFlagRequired("endpoint"))
	var profile []byte
	open := c.runtime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
		ch, err := r.Open(ctx, callruntime.OpenOptions{ChannelID: args[0], TeamID: teamID, EndpointID: endpointID, Profile: profile})
		if err != nil {
			return err
		}
		if err := ch.Close(ctx); err != nil { // the channel goes on without us
			return err
		}
		return c.print(map[string]string{"id": ch.ID, "teamId": ch.TeamID, "endpointId": ch.EndpointID},
			fields("id", ch.ID, "team", ch.TeamID, "endpoint", ch.EndpointID))
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.running = true
		find := c.office(func(ctx context.Context, o *app.Office, _ []string) error {
			e, err := o.Endpoints.Show(ctx, endpointID)
			if err != nil {
				return err
			}
			if e.TeamID != teamID {
				return errors.New("the endpoint is another team's")
			}
			if profileFile != "" {
				raw, err := os.ReadFile(profileFile)
				if err != nil {
					return fmt.Errorf("read profile: %w", err)
				}
				if e.Profile, err = endpoint.ParseProfile(raw); err != nil {
					return fmt.Errorf("%s: %w", profileFile, err)
				}
			}
			profile, err = json.Marshal(e.Profile)
			return err
		})
		if err := find(cmd, args); err != nil {
			return err
		}
		return open(cmd, args)
	}
	return cmd
}

func (c *cli) channelTailCommand() *cobra.Command {
	var from string
	var follow bool
	cmd := &cobra.Command{Use: "tail CHANNEL", Short: "Print what is on a channel's stream towards the runtime, oldest first", Args: cobra.ExactArgs(1),
		Long: `Prints the entries of a channel as the call runtime gets them, beginning with the oldest
that is kept, and ends when it has caught up, or with --follow goes on until Ctrl-C or
the channel's end. It claims and commits nothing. A session's channel has the session's id.`,
		RunE: c.runtime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
			last, err := c.tail(ctx, r, args[0], from)
			if err != nil || !follow {
				return err
			}
			ch := r.Observe(args[0], last)
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
		})}
	cmd.Flags().StringVar(&from, "from", "", "begin with the entry of this id")
	cmd.Flags().BoolVar(&follow, "follow", false, "go on with what happens from now on")
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

// describe says on one line what an entry is about.
func describe(e wire.Entry) string {
	what := string(e.Kind)
	if e.Command.Command != nil {
		what += " " + e.Command.Head().Type
	}
	details := []string{e.Event, string(e.Value), e.WorkItemID, string(e.Apply), e.Reason, e.Text, string(e.Result), string(e.Error)}
	if e.Content != nil {
		details = append(details, *e.Content)
	}
	for _, detail := range details {
		if detail != "" {
			what += " " + detail
		}
	}
	if m := e.Message; m != nil {
		what += " " + string(m.Type)
		if payload, _ := m.Payload(); payload != nil {
			what += " " + string(*payload)
		}
	}
	return strings.NewReplacer("\r", " ", "\n", " ").Replace(what)
}

func (c *cli) channelSendCommand() *cobra.Command {
	var kind, payload string
	cmd := &cobra.Command{Use: "send CHANNEL --type chat --payload JSON", Short: "Send a message to the browser, on behalf of the runtime", Args: cobra.ExactArgs(1),
		Example: `  telapi channel send ses_… --type chat --payload '{"text":"Good day"}'`,
		RunE: c.runtime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
			m := wire.ChannelMessage{Type: wire.MessageType(kind)}
			to, _ := m.Payload()
			if to == nil {
				return fmt.Errorf("there is nothing to send of type %q", kind)
			}
			*to = jsontext.Value(payload)
			if !to.IsValid() || to.Kind() != '{' {
				return errors.New("the payload is not a JSON object")
			}
			ch := r.Observe(args[0], "")
			if m.Type == wire.TypeAudio {
				return ch.SendAudio(ctx, m.Audio)
			}
			if err := ch.Send(ctx, m); err != nil {
				return err
			}
			return c.print(map[string]string{"channel": args[0], "status": "sent"}, func(w io.Writer) { _, _ = fmt.Fprintln(w, "sent") })
		})}
	cmd.Flags().StringVar(&kind, "type", "chat", "type of the message")
	cmd.Flags().StringVar(&payload, "payload", "", "the object that the type carries")
	must(cmd.MarkFlagRequired("payload"))
	return cmd
}

func (c *cli) channelEndCommand() *cobra.Command {
	var reason string
	cmd := &cobra.Command{Use: "end CHANNEL", Short: "End a channel for everybody", Args: cobra.ExactArgs(1),
		RunE: c.runtime(func(ctx context.Context, r *callruntime.Runtime, args []string) error {
			if err := r.Observe(args[0], "").End(ctx, reason); err != nil {
				return err
			}
			return c.print(map[string]string{"channel": args[0], "status": "ended"}, func(w io.Writer) { _, _ = fmt.Fprintln(w, "ended") })
		})}
	cmd.Flags().StringVar(&reason, "reason", "ended by an operator", "what the runtime is told")
	return cmd
}
