package redisstore

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/channel"
)

// channelPromises are kept by every engine.
var channelPromises = map[string]func(*testing.T, Options){
	"a cursor is good for everything or for nothing":          cursors,
	"a store that was wiped recovers nothing":                 wiped,
	"one connection owns a session":                           owners,
	"who is connected is known":                               presence,
	"a frame is on the stream once":                           framesOnce,
	"message ids are remembered, and not for ever":            remembered,
	"the runtime's word on text chat wins":                    textChat,
	"a runtime that lags behind is waited for":                backpressure,
	"what is committed is counted to the byte":                committedBytes,
	"what is not committed is kept, and a little more":        trimming,
	"a store that has lost its newest data is noticed":        setBack,
	"nothing happens on a channel after its end":              endings,
	"an idle channel ends":                                    idleness,
	"simultaneous frames keep their order":                    order,
	"one of two runtimes gets a session":                      claims,
	"a runtime that dies is replaced":                         succession,
	"groups see each session until it is taken":               groups,
	"messages are delivered, stored and sent once":            liveMessages,
	"what is sent again is kept once":                         sentAgain,
	"a runtime opens, leaves and finds again what is its own": opening,
}

// channelFixture is a session's channel between a browser and a runtime.
type channelFixture struct {
	*testing.T
	store    *Store
	channels *Channels
	id       string
	limits   wire.ChannelLimits
}

func newChannelFixture(t *testing.T, opts Options, change func(*wire.ChannelLimits)) *channelFixture {
	t.Helper()
	s, _ := connect(t, opts)
	limits := wire.DefaultChannelLimits()
	if change != nil {
		change(&limits)
	}
	return &channelFixture{t, s, NewChannels(s, limits), uuid.NewString(), limits}
}

func (s *channelFixture) raw(operate func(context.Context, rueidis.Client) error) {
	s.Helper()
	raw(s.T, s.store, operate)
}

func (s *channelFixture) attachment(connection string) channel.AttachRequest {
	return channel.AttachRequest{
		ChannelID: s.id, ConnectionID: connection, Lease: time.Minute, TeamID: "team", EndpointID: "endpoint", Mode: "chat",
		Profile: []byte(`{"commandSources":["bot"]}`), Entry: s.entry(wire.KindSession, "connected"),
	}
}

func (s *channelFixture) entry(kind wire.EntryKind, event string) []byte {
	return []byte(fmt.Sprintf(`{"kind":%q,"channelId":%q,"at":1,"event":%q}`, kind, s.id, event))
}

func (s *channelFixture) attach(connection string, change ...func(*channel.AttachRequest)) channel.AttachResult {
	s.Helper()
	a := s.attachment(connection)
	for _, f := range change {
		f(&a)
	}
	attached, err := s.channels.Attach(s.Context(), a)
	if err != nil {
		s.Fatalf("attach: %v", err)
	}
	return attached
}

func resume(c channel.Cursor) func(*channel.AttachRequest) {
	return func(a *channel.AttachRequest) { a.Resume = &c }
}

// frame appends a frame whose message id, and event, is name.
func (s *channelFixture) frame(connection, name string) channel.Outcome {
	s.Helper()
	return s.append(connection, channel.Frame{MessageID: name, Entry: s.entry(wire.KindFrame, name)})[0]
}

func (s *channelFixture) append(connection string, frames ...channel.Frame) []channel.Outcome {
	s.Helper()
	outcome, err := s.channels.Append(s.Context(), s.id, connection, frames)
	if err != nil {
		s.Fatalf("append: %v", err)
	}
	return outcome
}

func (s *channelFixture) runtime(name string, change ...func(*callruntime.Options)) *callruntime.Runtime {
	s.Helper()
	opts := callruntime.Options{Store: s.store.ClientOption(), Name: name, Group: s.id, Lease: time.Minute, Limits: s.limits}
	for _, f := range change {
		f(&opts)
	}
	r, err := callruntime.New(opts)
	if err != nil {
		s.Fatalf("start runtime: %v", err)
	}
	s.Cleanup(r.Close)
	return r
}

// take attaches a runtime to the channel.
func (s *channelFixture) take(name string) *callruntime.Channel {
	s.Helper()
	c, err := s.runtime(name).Attach(s.Context(), s.id)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func (s *channelFixture) send(c *callruntime.Channel, texts ...string) {
	s.Helper()
	for _, text := range texts {
		m := wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{"text":"` + text + `"}`)}
		if err := c.Send(s.Context(), m); err != nil {
			s.Fatalf("send: %v", err)
		}
	}
}

// receive reads events until one is the last.
func (s *channelFixture) receive(c *callruntime.Channel, last string) (events []string, position string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	for {
		d, err := c.Receive(ctx)
		if err != nil {
			s.Fatalf("receive after %v: %v", events, err)
		}
		events, position = append(events, d.Entry.Event+d.Entry.Reason), d.Position
		if d.Entry.Event+d.Entry.Reason == last {
			return events, position
		}
	}
}

func texts(list []channel.Message) string {
	var all []string
	for _, m := range list {
		var message struct{ Chat struct{ Text string } }
		_ = json.Unmarshal(m.JSON, &message, json.MatchCaseInsensitiveNames(true))
		all = append(all, message.Chat.Text)
	}
	return strings.Join(all, " ")
}

// browser is a channel.Subscriber that records its calls.
type browser struct{ recorder }

func (b *browser) Messages(after channel.Cursor, list []channel.Message) {
	n := func(id string) string { n, _, _ := strings.Cut(id, "-"); return n }
	for _, m := range list {
		b.note(n(after.ID) + ">" + n(m.Cursor.ID) + ":" + texts([]channel.Message{m}))
		after = m.Cursor
	}
}

func (b *browser) Audio([]byte) { b.note("audio") }

func (b *browser) Replaced(by string) { b.note("replaced:" + by) }

func (b *browser) Closed(reason string) { b.note("closed:" + reason) }

func (b *browser) Gap() { b.note("gap") }
