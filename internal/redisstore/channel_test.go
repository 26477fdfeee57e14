package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/kv"
	"telapi/internal/lua"
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
	"what is sent is heard, kept and sent once":               liveMessages,
	"what is sent again is kept once":                         sentAgain,
	"a runtime opens, leaves and finds again what is its own": opening,
}

// stage is a session's channel between a browser and a runtime.
type stage struct {
	*testing.T
	store    *Store
	channels *Channels
	id       string
	limits   wire.ChannelLimits
}

func newStage(t *testing.T, opts Options, change func(*wire.ChannelLimits)) *stage {
	t.Helper()
	s, _ := connect(t, opts)
	limits := wire.DefaultChannelLimits()
	if change != nil {
		change(&limits)
	}
	return &stage{t, s, NewChannels(s, limits), uuid.NewString(), limits}
}

func (s *stage) raw(operate func(context.Context, rueidis.Client) error) {
	s.Helper()
	raw(s.T, s.store, operate)
}

func (s *stage) attachment(connection string) channel.AttachRequest {
	return channel.AttachRequest{
		ChannelID: s.id, ConnectionID: connection, Lease: time.Minute, TeamID: "team", EndpointID: "endpoint", Mode: "chat",
		Profile: []byte(`{"commandSources":["bot"]}`), Entry: s.entry(wire.KindSession, "connected"),
	}
}

func (s *stage) entry(kind wire.EntryKind, event string) []byte {
	return []byte(fmt.Sprintf(`{"kind":%q,"channelId":%q,"at":1,"event":%q}`, kind, s.id, event))
}

func (s *stage) attach(connection string, change ...func(*channel.AttachRequest)) channel.AttachResult {
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
func (s *stage) frame(connection, name string) channel.Outcome {
	s.Helper()
	return s.append(connection, channel.Frame{MessageID: name, Entry: s.entry(wire.KindFrame, name)})[0]
}

func (s *stage) append(connection string, frames ...channel.Frame) []channel.Outcome {
	s.Helper()
	outcome, err := s.channels.Append(s.Context(), s.id, connection, frames)
	if err != nil {
		s.Fatalf("append: %v", err)
	}
	return outcome
}

func (s *stage) runtime(name string, change ...func(*callruntime.Options)) *callruntime.Runtime {
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
func (s *stage) take(name string) *callruntime.Channel {
	s.Helper()
	c, err := s.runtime(name).Attach(s.Context(), s.id)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func (s *stage) send(c *callruntime.Channel, texts ...string) {
	s.Helper()
	for _, text := range texts {
		m := wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{"text":"` + text + `"}`)}
		if err := c.Send(s.Context(), m); err != nil {
			s.Fatalf("send: %v", err)
		}
	}
}

// receive reads events until one is the last.
func (s *stage) receive(c *callruntime.Channel, last string) (events []string, position string) {
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

func cursors(t *testing.T, opts Options) {
	s := newStage(t, opts, func(l *wire.ChannelLimits) { l.HistoryMessages = 3 })
	start := s.attach("c0")
	if start.Recovered || start.Head.ID != "" || start.Head.Epoch == "" || !start.TextChat {
		t.Fatalf("first: %+v", start)
	}
	c := s.take("r")
	s.send(c, "1", "2")
	greeted := s.attach("c0", resume(start.Head))
	if !greeted.Recovered || texts(greeted.Missed) != "1 2" {
		t.Fatalf("from before everything: %+v", greeted)
	}
	at := []channel.Cursor{start.Head, greeted.Missed[0].Cursor, greeted.Missed[1].Cursor}
	s.send(c, "3", "4", "5") // 3, 4 and 5 are kept, 2 is the newest that is not
	head := s.attach("c0").Head
	number, ms, _ := strings.Cut(head.ID, "-")
	other := newStage(t, opts, nil)
	foreign := other.attach("x").Head
	cases := map[string]struct {
		cursor *channel.Cursor
		missed string // "-": not recovered
	}{
		"none":                     {nil, "-"},
		"current":                  {&head, ""},
		"old but kept":             {&at[2], "3 4 5"},
		"trimmed":                  {&at[1], "-"},
		"trimmed start":            {&at[0], "-"},
		"from the future":          {&channel.Cursor{Epoch: head.Epoch, ID: "6-" + ms}, "-"},
		"of a moment that was not": {&channel.Cursor{Epoch: head.Epoch, ID: number + "-1"}, "-"},
		"of another session":       {&channel.Cursor{Epoch: foreign.Epoch, ID: head.ID}, "-"},
		"garbage":                  {&channel.Cursor{Epoch: head.Epoch, ID: "5-0; FLUSHALL\x00"}, "-"},
		"huge":                     {&channel.Cursor{Epoch: head.Epoch, ID: strings.Repeat("9", 30) + "-1"}, "-"},
		"without a time":           {&channel.Cursor{Epoch: head.Epoch, ID: "4"}, "-"},
		"range":                    {&channel.Cursor{Epoch: head.Epoch, ID: "-"}, "-"},
		"without an epoch":         {&channel.Cursor{ID: head.ID}, "-"},
		"empty":                    {&channel.Cursor{}, "-"},
	}
	for name, want := range cases {
		got := s.attach("c1", func(a *channel.AttachRequest) { a.Resume = want.cursor })
		if got.Head != head || got.Recovered != (want.missed != "-") || texts(got.Missed) != strings.Trim(want.missed, "-") {
			t.Errorf("attach with a cursor that is %s: %+v", name, got)
		}
		if want.cursor == nil {
			continue
		}
		missed, ok, err := s.channels.Since(t.Context(), s.id, *want.cursor)
		if err != nil || ok != got.Recovered || texts(missed) != texts(got.Missed) {
			t.Errorf("since a cursor that is %s: %v %v %v", name, missed, ok, err)
		}
	}
	t.Run("age", func(t *testing.T) {
		s := newStage(t, opts, func(l *wire.ChannelLimits) { l.HistoryMs = 200 })
		head := s.attach("c").Head
		s.send(s.take("r"), "old")
		eventually(t, "history that is gone", func() bool { return !s.attach("c", resume(head)).Recovered })
	})
}

func wiped(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	s.attach("c")
	c := s.take("r")
	s.send(c, "1", "2")
	before := s.attach("c").Head
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, node := range client.Nodes() {
			if err := node.Do(ctx, node.B().Flushall().Build()).Error(); err != nil {
				return err
			}
		}
		return nil
	})
	if got := s.frame("c", "lost"); got != channel.Lost {
		t.Errorf("frame: %s", got)
	}
	if got, _, err := s.channels.Renew(t.Context(), s.id, "c", time.Minute, false); got != channel.Lost || err != nil {
		t.Errorf("renew: %s, %v", got, err)
	}
	if _, ok, err := s.channels.Since(t.Context(), s.id, before); ok || err != nil {
		t.Errorf("since: %v, %v", ok, err)
	}
	if err := c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value("{}")}); !errors.Is(err, callruntime.ErrLost) {
		t.Errorf("send: %v", err)
	}
	if got := s.attach("c", resume(before)); got.Recovered || len(got.Missed) != 0 || !got.Offer || got.Head.Epoch == before.Epoch {
		t.Errorf("attach: %+v", got)
	}
	if err := c.Commit(t.Context(), "1-1"); !errors.Is(err, callruntime.ErrClaimLost) {
		t.Errorf("commit by the runtime of the former life: %v", err)
	}
}

func owners(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	listen(t, s.store)
	heard := &browser{}
	stop, err := s.channels.Subscribe(t.Context(), s.id, heard)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	s.attach("a")
	reject := func(a *channel.AttachRequest) { a.Reject = true }
	refused := s.attachment("b")
	refused.Reject = true
	if _, err := s.channels.Attach(t.Context(), refused); !fault.Is(err, fault.SessionInUse) {
		t.Errorf("a second connection: %v", err)
	}
	if err := s.channels.CheckAttach(t.Context(), refused); !fault.Is(err, fault.SessionInUse) {
		t.Errorf("check of a second connection: %v", err)
	}
	if err := s.channels.CheckAttach(t.Context(), s.attachment("b")); err != nil || heard.story() != "" {
		t.Errorf("check of a connection that replaces the owner: %v; published %s", err, heard.story())
	}
	refused.Succeeds = "other"
	if _, err := s.channels.Attach(t.Context(), refused); !fault.Is(err, fault.SessionInUse) {
		t.Errorf("one that names another: %v", err)
	}
	s.attach("b", reject, func(a *channel.AttachRequest) { a.Succeeds = "a" })
	eventually(t, "the news", func() bool { return heard.story() == "replaced:b" })
	s.attach("c", func(a *channel.AttachRequest) { a.Lease = time.Millisecond })
	eventually(t, "the news", func() bool { return heard.story() == "replaced:b replaced:c" })
	for connection, want := range map[string]channel.Outcome{"a": channel.NotOwner, "b": channel.NotOwner, "c": channel.Appended} {
		if got := s.frame(connection, connection); got != want {
			t.Errorf("frame of %s: %s", connection, got)
		}
	}
	eventually(t, "the end of a lease", func() bool {
		_, err := s.channels.Attach(t.Context(), func() channel.AttachRequest { a := s.attachment("d"); a.Reject = true; return a }())
		return err == nil
	})
	if got, _, err := s.channels.Renew(t.Context(), s.id, "c", time.Minute, false); got != channel.NotOwner || err != nil {
		t.Errorf("renewal of what is lost: %s, %v", got, err)
	}
	if got, _, err := s.channels.Renew(t.Context(), s.id, "d", time.Minute, false); got != channel.Owned || err != nil {
		t.Errorf("renewal: %s, %v", got, err)
	}
	for _, connection := range []string{"a", "d", "d"} {
		if err := s.channels.Detach(t.Context(), s.id, connection, s.entry(wire.KindSession, "disconnected")); err != nil {
			t.Fatal(err)
		}
	}
	s.attach("e", reject)
	foreign := s.attachment("f")
	foreign.TeamID = "other"
	if _, err := s.channels.Attach(t.Context(), foreign); err == nil || s.channels.CheckAttach(t.Context(), foreign) == nil {
		t.Error("another team was let in")
	}
	s.frame("e", "last")
	if events, _ := s.receive(s.take("r"), "last"); strings.Join(events, " ") != "connected connected connected c connected disconnected connected last" {
		t.Errorf("the runtime saw %v", events)
	}
}

func framesOnce(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	s.attach("a")
	if got := []channel.Outcome{s.frame("a", "1"), s.frame("a", "1"), s.frame("a", "2"), s.frame("a", "1")}; !slices.Equal(got,
		[]channel.Outcome{channel.Appended, channel.Duplicate, channel.Appended, channel.Duplicate}) {
		t.Errorf("got %v", got)
	}
	s.attach("b") // what one connection sent, another may send again
	if got := s.frame("b", "2"); got != channel.Duplicate {
		t.Errorf("by another connection: %s", got)
	}
	all := func(connection string, frames ...channel.Frame) string {
		t.Helper()
		for i := range frames {
			frames[i].Entry = s.entry(wire.KindFrame, frames[i].MessageID)
		}
		return fmt.Sprint(s.append(connection, frames...))
	}
	if got := all("b", channel.Frame{MessageID: "3"}, channel.Frame{MessageID: "2"}, channel.Frame{MessageID: "4", Switch: wire.DisableTextChat},
		channel.Frame{MessageID: "5", Chat: true}, channel.Frame{MessageID: "3", Chat: true}, channel.Frame{MessageID: "6"}); got !=
		"[appended repeated appended chat_disabled repeated appended]" {
		t.Errorf("several at a time: %s", got)
	}
	if got := all("a", channel.Frame{MessageID: "7"}, channel.Frame{MessageID: "8"}); got != "[not_owner not_owner]" {
		t.Errorf("by one that owns nothing: %s", got)
	}
	if events, _ := s.receive(s.take("r"), "6"); strings.Join(events, " ") != "connected 1 2 connected 3 4 6" {
		t.Errorf("the runtime saw %v", events)
	}
}

func textChat(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	s.attach("a")
	c := s.take("r")
	n := 0
	browser := func(command string) {
		t.Helper()
		n++
		if got := s.append("a", channel.Frame{MessageID: fmt.Sprint(n), Switch: command, Entry: []byte("{}")}); got[0] != channel.Appended {
			t.Errorf("%s: %s", command, got)
		}
	}
	runtime := func(command string) {
		t.Helper()
		if err := c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeControl, Control: jsontext.Value(`{"command":"` + command + `"}`)}); err != nil {
			t.Error(err)
		}
	}
	expect := func(on bool) {
		t.Helper()
		n++
		got := s.append("a", channel.Frame{MessageID: fmt.Sprint(n), Chat: true, Entry: []byte("{}")})[0]
		if (got == channel.Appended) != on || (got == channel.ChatDisabled) == on {
			t.Errorf("chat: %s; want %v", got, on)
		}
		if s.attach("a").TextChat != on {
			t.Errorf("attached: want %v", on)
		}
	}
	expect(true)
	browser(wire.DisableTextChat)
	expect(false)
	browser(wire.EnableTextChat)
	expect(true)
	runtime(wire.DisableTextChat)
	expect(false)
	browser(wire.EnableTextChat)
	expect(false)
	browser(wire.DisableTextChat)
	browser(wire.EnableTextChat)
	expect(false)
	runtime("mute")
	expect(false)
	runtime(wire.EnableTextChat)
	expect(true)
	browser(wire.DisableTextChat)
	runtime(wire.EnableTextChat)
	expect(true)
}

func backpressure(t *testing.T, opts Options) {
	limits := map[string]func(*wire.ChannelLimits){
		"entries": func(l *wire.ChannelLimits) { l.BacklogEntries = 5 },
		"bytes":   func(l *wire.ChannelLimits) { l.BacklogBytes = 400 },
	}
	for name, change := range limits {
		s := newStage(t, opts, change)
		s.attach("a")
		sent := 0
		fill := func() {
			t.Helper()
			for ; s.frame("a", fmt.Sprint(sent)) == channel.Appended; sent++ {
				if sent > 100 {
					t.Fatalf("%s: no end", name)
				}
			}
			if got := s.frame("a", fmt.Sprint(sent)); got != channel.Backpressure {
				t.Errorf("%s: %s", name, got)
			}
		}
		fill()
		if got := s.frame("a", "0"); got != channel.Duplicate {
			t.Errorf("%s: a repeated frame: %s", name, got)
		}
		for range 50 { // who comes and goes cannot fill the store either
			s.attach("a")
			if err := s.channels.Detach(t.Context(), s.id, "a", s.entry(wire.KindSession, "disconnected")); err != nil {
				t.Fatal(err)
			}
		}
		s.attach("a")
		if entries, err := s.runtime("looker").Entries(t.Context(), s.id, "", 100); err != nil || len(entries) > 20 {
			t.Errorf("%s: %d entries, %v", name, len(entries), err)
		}
		oldest, err := s.runtime("looker").Entries(t.Context(), s.id, "", 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.runtime("looker").Observe(s.id, "").Commit(t.Context(), oldest[0].Position); !errors.Is(err, callruntime.ErrClaimLost) {
			t.Errorf("%s: an onlooker's commit: %v", name, err)
		}
		c := s.take("r")
		_, half := s.receive(c, fmt.Sprint(sent/2))
		if err := c.Commit(t.Context(), half); err != nil {
			t.Fatal(err)
		}
		if got := s.frame("a", fmt.Sprint(sent)); got != channel.Backpressure {
			t.Errorf("%s: after half a commit: %s", name, got)
		}
		for d, err := c.Receive(t.Context()); ; d, err = c.Receive(t.Context()) {
			if err == nil {
				err = c.Commit(t.Context(), d.Position)
			}
			if err != nil {
				t.Fatal(err)
			}
			if s.frame("a", fmt.Sprint(sent)) == channel.Appended {
				break
			}
		}
		sent++
		s.receive(c, fmt.Sprint(sent-1))
		fill()
		if err := c.Commit(t.Context(), half); err != nil {
			t.Errorf("an old position: %v", err)
		}
		for _, position := range []string{"1000-1", "1001"} {
			if err := c.Commit(t.Context(), position); !errors.Is(err, callruntime.ErrUnknownPosition) {
				t.Errorf("commit of %s: %v", position, err)
			}
		}
	}
}

// However many entries are committed at a time, their bytes are counted exactly:
// what is left uncounted each time would stop a long conversation in the end.
func committedBytes(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	s.attach("a")
	var frames []channel.Frame
	for i := range 100 {
		name := strings.Repeat("x", i*i%37) + fmt.Sprint(i)
		frames = append(frames, channel.Frame{MessageID: name, Entry: s.entry(wire.KindFrame, name)})
	}
	for first := 0; first < len(frames); first += 20 {
		s.append("a", frames[first:first+20]...)
	}
	c, bytes := s.take("r"), 0
	steps := []int{1, 2, 16, 17, 18, 31, 50, 64, 65, 80, 99, 101} // the first entry is of the attachment
	for n := 1; n <= 101; n++ {
		d, err := c.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			bytes += len(s.entry(wire.KindSession, "connected"))
		} else {
			bytes += len(frames[n-2].Entry)
		}
		if !slices.Contains(steps, n) {
			continue
		}
		if err := c.Commit(t.Context(), d.Position); err != nil {
			t.Fatal(err)
		}
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			flow, err := client.Do(ctx, client.B().Hget().Key(kv.MetaKey(s.id)).Field("flow").Build()).ToString()
			if got, want := strings.Join(strings.Fields(flow)[5:7], " "), fmt.Sprint(n, " ", bytes); got != want {
				t.Errorf("committed are %s entries and bytes, want %s", got, want)
			}
			return err
		})
	}
}

func trimming(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	s.attach("a")
	const frames = 2500
	for i := 0; i < frames; i += 100 {
		batch := make([]channel.Frame, 100)
		for j := range batch {
			name := fmt.Sprint(i + j)
			batch[j] = channel.Frame{MessageID: name, Entry: s.entry(wire.KindFrame, name)}
		}
		s.append("a", batch...)
	}
	read := func(c *callruntime.Channel, first, last int) {
		t.Helper()
		for i := first; i <= last; i++ {
			d, err := c.Receive(t.Context())
			if err == nil {
				err = c.Commit(t.Context(), d.Position)
			}
			if err != nil || i >= 0 && d.Entry.Event != fmt.Sprint(i) {
				t.Fatalf("entry %d is %+v, %v", i, d.Entry, err)
			}
		}
	}
	read(s.take("r"), -1, 199)
	read(s.take("r"), 200, frames-1) // where the one before left off, more than is kept for onlookers from the end
	kept, err := s.runtime("looker").Entries(t.Context(), s.id, "", frames)
	if err != nil || len(kept) < 1000 || len(kept) > 1200 || kept[len(kept)-1].Entry.Event != fmt.Sprint(frames-1) {
		t.Errorf("%d entries are kept for onlookers, %v", len(kept), err)
	}
}

// What a failover to a replica that lagged behind looks like.
func setBack(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	s.attach("a")
	s.frame("a", "1")
	c := s.take("r")
	_, position := s.receive(c, "1")
	if err := c.Commit(t.Context(), position); err != nil {
		t.Fatal(err)
	}
	keys := kv.ChannelKeys(s.id)
	var flow string
	s.raw(func(ctx context.Context, client rueidis.Client) (err error) {
		flow, err = client.Do(ctx, client.B().Hget().Key(keys[0]).Field("flow").Build()).ToString()
		return err
	})
	s.frame("a", "2")
	_, lost := s.receive(c, "2")
	later := time.Now().Add(5 * time.Millisecond)
	eventually(t, "a later moment", func() bool { return time.Now().After(later) })
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		return errors.Join(
			client.Do(ctx, client.B().Hset().Key(keys[0]).FieldValue().FieldValue("flow", flow).Build()).Error(),
			client.Do(ctx, client.B().Del().Key(keys[1]).Build()).Error(), // a stream takes no lower id than its last
			client.Do(ctx, client.B().Xadd().Key(keys[1]).Id(position).FieldValue().
				FieldValue("entry", string(s.entry(wire.KindFrame, "1"))).FieldValue("total", "1").Build()).Error())
	})
	if got := s.frame("a", "3"); got != channel.Appended {
		t.Fatalf("frame: %s", got)
	}
	if err := c.Commit(t.Context(), lost); !errors.Is(err, callruntime.ErrUnknownPosition) {
		t.Errorf("commit of what is lost: %v", err)
	}
	if d, err := c.Receive(t.Context()); !errors.Is(err, callruntime.ErrLost) {
		t.Errorf("received %+v, %v", d, err)
	}
	if events, _ := s.receive(s.take("r"), "3"); strings.Join(events, " ") != "3" {
		t.Errorf("after attaching again: %v", events)
	}
}

// A runtime that did not hear the answer sends the same once more, to a store
// that may have let go of something.
func sentAgain(t *testing.T, opts Options) {
	for name, c := range map[string]struct {
		history       int64
		before, after func(s *stage, known string)
		kept          string
	}{
		"nothing happened": {history: 10, kept: "1 2 3 4 5"},
		"a short history was read": {history: 2, kept: "4 5", after: func(s *stage, _ string) {
			s.attach("a", resume(channel.Cursor{}))
		}},
		"the newest was lost before": {history: 10, kept: "1 3 4 5", before: func(s *stage, known string) {
			_, ms, _ := strings.Cut(known, "-")
			then, err := strconv.ParseInt(ms, 10, 64)
			if err != nil {
				s.Fatal(err)
			}
			eventually(s.T, "a later moment", func() bool { return time.Now().UnixMilli() > then })
			s.raw(func(ctx context.Context, client rueidis.Client) error {
				keys := kv.ChannelKeys(s.id)
				return errors.Join(
					client.Do(ctx, client.B().Hset().Key(keys[0]).FieldValue().FieldValue("outLast", "1-"+ms).Build()).Error(),
					client.Do(ctx, client.B().Del().Key(keys[2]).Build()).Error(), // a stream takes no lower id than its last
					client.Do(ctx, client.B().Xadd().Key(keys[2]).Id("1-"+ms).FieldValue().FieldValue("message", "1").Build()).Error())
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, opts, func(l *wire.ChannelLimits) { l.HistoryMessages = c.history })
			s.attach("a")
			send := func(known string, messages ...string) (newest string) {
				s.raw(func(ctx context.Context, client rueidis.Client) error {
					args := append([]string{"", strings.Repeat("-", len(messages)), known, ""}, messages...)
					words, err := rueidis.NewLuaScript(lua.FastChannel("send")).Exec(ctx, client, kv.ChannelKeys(s.id), args).AsStrSlice()
					newest = words[0]
					return err
				})
				return newest
			}
			known := send("", "1", "2")
			if c.before != nil {
				c.before(s, known)
			}
			send(known, "3", "4", "5")
			if c.after != nil {
				c.after(s, known)
			}
			send(known, "3", "4", "5")
			var kept []string
			s.raw(func(ctx context.Context, client rueidis.Client) error {
				list, err := client.Do(ctx, client.B().Xrange().Key(kv.History(s.id)).Start("-").End("+").Build()).AsXRange()
				for _, m := range list {
					kept = append(kept, m.FieldValues["message"])
				}
				return err
			})
			if got := strings.Join(kept, " "); got != c.kept {
				t.Errorf("kept are %s, not %s", got, c.kept)
			}
		})
	}
}

func endings(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	listen(t, s.store)
	heard := &browser{}
	stop, err := s.channels.Subscribe(t.Context(), s.id, heard)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := s.channels.EndChannel(t.Context(), s.id, "early"); err != nil {
		t.Errorf("the end of what is not there: %v", err)
	}
	s.attach("a")
	s.frame("a", "1")
	c := s.take("r")
	for range 2 {
		if err := s.channels.EndChannel(t.Context(), s.id, "revoked"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the news", func() bool { return heard.story() == "closed:revoked" })
	if _, err := s.channels.Attach(t.Context(), s.attachment("b")); !fault.Is(err, fault.SessionEnded) {
		t.Errorf("attach: %v", err)
	}
	if err := s.channels.CheckAttach(t.Context(), s.attachment("b")); !fault.Is(err, fault.SessionEnded) {
		t.Errorf("check: %v", err)
	}
	if got := s.frame("a", "2"); got != channel.Ended {
		t.Errorf("frame: %s", got)
	}
	if got, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, false); got != channel.Ended || offer || err != nil {
		t.Errorf("renew: %s, %v", got, err)
	}
	if err := s.channels.Detach(t.Context(), s.id, "a", s.entry(wire.KindSession, "disconnected")); err != nil {
		t.Errorf("detach: %v", err)
	}
	if err := c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeStatus, Status: jsontext.Value("{}")}); !errors.Is(err, callruntime.ErrEnded) {
		t.Errorf("send: %v", err)
	}
	if err := c.End(t.Context(), "again"); err != nil {
		t.Errorf("end: %v", err)
	}
	events, last := s.receive(c, "revoked")
	if strings.Join(events, " ") != "connected 1 ended revoked" {
		t.Errorf("the runtime saw %v", events)
	}
	if _, err := c.Receive(t.Context()); !errors.Is(err, callruntime.ErrEnded) {
		t.Errorf("receive: %v", err)
	}
	if err := c.Commit(t.Context(), last); err != nil {
		t.Errorf("commit: %v", err)
	}
	for who, late := range map[string]*callruntime.Channel{"the same runtime": s.take("r"), "an onlooker": s.runtime("o").Observe(s.id, last)} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if _, err := late.Receive(ctx); !errors.Is(err, callruntime.ErrEnded) {
			t.Errorf("%s that comes when everything is read: %v", who, err)
		}
		cancel()
	}
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, key := range kv.ChannelKeys(s.id) {
			ttl, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64()
			if err != nil {
				return err
			}
			if ttl != -2 && (ttl < 24*3600_000 || ttl > s.limits.KeepMs) {
				t.Errorf("%s lives for %d ms", key, ttl)
			}
		}
		return nil
	})
}

// touched makes it so long ago that somebody did something on the channel.
func (s *stage) touched(before time.Duration) {
	s.Helper()
	flow := s.flow()
	flow[0], flow[2] = "0", fmt.Sprint(time.Now().Add(24*time.Hour-before).UnixMilli())
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		return client.Do(ctx, client.B().Hset().Key(kv.MetaKey(s.id)).FieldValue().FieldValue("flow", strings.Join(flow, " ")).Build()).Error()
	})
}

func (s *stage) flow() (numbers []string) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		flow, err := client.Do(ctx, client.B().Hget().Key(kv.MetaKey(s.id)).Field("flow").Build()).ToString()
		numbers = strings.Fields(flow)
		return err
	})
	return numbers
}

func idleness(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	s.attach("a")
	s.frame("a", "0")
	c := s.take("r")
	if err := c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, MessageID: "1", Chat: jsontext.Value("{}")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Await(t.Context(), callruntime.AwaitOptions{}); err != nil {
		t.Fatal(err)
	}
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for _, key := range kv.ChannelKeys(s.id)[:7] { // the others come later
			ttl, err := client.Do(ctx, client.B().Pttl().Key(key).Build()).AsInt64()
			if err != nil || ttl <= s.limits.IdleMs || ttl > s.limits.IdleMs+s.limits.KeepMs {
				t.Errorf("%s lives for %d ms, %v", key, ttl, err)
			}
		}
		return nil
	})
	for i := range 3 { // 69 hours
		s.touched(23 * time.Hour)
		if got := s.frame("a", fmt.Sprint("busy", i)); got != channel.Appended {
			t.Fatalf("a channel in use: %s", got)
		}
		if got := s.frame("a", fmt.Sprint("busier", i)); got != channel.Appended {
			t.Fatalf("a channel in use: %s", got)
		}
	}
	s.touched(25 * time.Hour)
	if err := s.channels.CheckAttach(t.Context(), s.attachment("b")); !fault.Is(err, fault.SessionEnded) {
		t.Errorf("check of an idle channel: %v", err)
	}
	if got := s.frame("a", "late"); got != channel.Ended {
		t.Errorf("an idle channel: %s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var last callruntime.Delivery
	for {
		d, err := c.Receive(ctx)
		if err != nil {
			if e := last.Entry; !errors.Is(err, callruntime.ErrEnded) || e.Kind != wire.KindChannelEnded || e.ChannelID != s.id || e.Reason != "idle" || e.At == 0 {
				t.Errorf("the runtime is told %v after %s", err, last.JSON)
			}
			return
		}
		last = d
	}
}

func order(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	const connections, frames = 50, 20
	runtime := s.runtime("r")
	var wg sync.WaitGroup
	for range connections {
		mine := *s
		mine.id = uuid.NewString()
		mine.attach("a")
		c, err := runtime.Attach(t.Context(), mine.id)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for i := range frames {
				if got := mine.frame("a", fmt.Sprint(i)); got != channel.Appended {
					t.Errorf("frame: %s", got)
				}
			}
		})
		wg.Go(func() {
			want := []string{"connected"}
			for i := range frames {
				want = append(want, fmt.Sprint(i))
			}
			if events, _ := mine.receive(c, fmt.Sprint(frames-1)); !slices.Equal(events, want) {
				t.Errorf("the runtime saw %v", events)
			}
		})
	}
	wg.Wait()
}

func (s *stage) offer() {
	s.Helper()
	err := s.channels.Offer(s.Context(), wire.Offer{SessionID: s.id, TeamID: "team", EndpointID: "endpoint", Mode: "chat",
		Identity: &wire.Identifier{Name: "Ann"}, Metadata: jsontext.Value(`{"a":[1]}`)})
	if err != nil {
		s.Fatal(err)
	}
}

// mine keeps tests from taking each other's sessions.
func (s *stage) mine(o wire.Offer) bool { return o.SessionID == s.id }

func claims(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	if !s.attach("a").Offer || s.attach("a").Offer {
		t.Error("not offered once")
	}
	s.offer()
	s.offer() // twice is harmless
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	won := make(chan *callruntime.Channel, 2)
	var wg sync.WaitGroup
	for _, name := range []string{"r1", "r2"} {
		r := s.runtime(name)
		wg.Go(func() {
			for {
				c, err := r.Accept(ctx, s.mine)
				if err != nil {
					return
				}
				won <- c
			}
		})
	}
	c := <-won
	if c.ID != s.id || c.TeamID != "team" || c.EndpointID != "endpoint" || c.Mode != "chat" || string(c.Profile) != `{"commandSources":["bot"]}` ||
		c.Offer.Identity.Name != "Ann" || string(c.Offer.Metadata) != `{"a":[1]}` {
		t.Errorf("claimed %+v", c)
	}
	s.offer()
	eventually(t, "all offers settled", func() bool {
		gone := true
		s.raw(func(ctx context.Context, client rueidis.Client) error {
			list, err := client.Do(ctx, client.B().Xrange().Key(kv.OffersStream).Start("-").End("+").Build()).AsXRange()
			gone = !slices.ContainsFunc(list, func(e rueidis.XRangeEntry) bool { return strings.Contains(e.FieldValues["offer"], s.id) })
			return err
		})
		return gone
	})
	cancel()
	wg.Wait()
	if len(won) > 0 {
		t.Error("claimed twice")
	}
	if _, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, false); offer || err != nil {
		t.Errorf("offered although claimed: %v", err)
	}
	if _, err := s.runtime("r3").Attach(t.Context(), s.id); !errors.Is(err, callruntime.ErrClaimed) {
		t.Errorf("a third runtime: %v", err)
	}
}

func succession(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	short := func(o *callruntime.Options) { o.Lease = time.Second }
	s.attach("a")
	s.frame("a", "1")

	first := s.runtime("first", short)
	if _, err := first.Accept(expired(t), s.mine); err == nil {
		t.Error("accepted what was not offered")
	}
	s.offer()
	// It dies between reading an offer and claiming the session.
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		for {
			streams, err := client.Do(ctx, client.B().Xreadgroup().Group(s.id, "first").Count(1).Streams().Key(kv.OffersStream).Id(">").Build()).AsXRead()
			if rueidis.IsRedisNil(err) {
				return nil // by a reading that was under way when Accept gave up
			}
			if err != nil {
				return err
			}
			if strings.Contains(streams[kv.OffersStream][0].FieldValues["offer"], s.id) {
				return nil
			}
		}
	})
	second := s.runtime("second", short)
	c, err := second.Accept(t.Context(), s.mine)
	if err != nil {
		t.Fatal(err)
	}
	_, position := s.receive(c, "1")
	if err := c.Commit(t.Context(), position); err != nil {
		t.Fatal(err)
	}
	s.frame("a", "2")
	s.receive(c, "2") // and is not committed
	second.Close()    // it dies after claiming

	unsure := false
	eventually(t, "a new offer", func() bool {
		_, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, unsure)
		if unsure = err != nil; unsure {
			t.Logf("renew: %v", err)
		}
		return offer
	})
	if _, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, false); offer || err != nil {
		t.Errorf("to be offered twice: %t %v", offer, err)
	}
	if _, offer, err := s.channels.Renew(t.Context(), s.id, "a", time.Minute, true); !offer || err != nil {
		t.Errorf("what may not have been offered is not to be offered: %v", err)
	}
	s.offer()
	s.frame("a", "3")
	third, err := s.runtime("third").Accept(t.Context(), s.mine)
	if err != nil {
		t.Fatal(err)
	}
	if events, _ := s.receive(third, "3"); strings.Join(events, " ") != "2 3" {
		t.Errorf("the successor saw %v", events)
	}
}

// expired is a context that lasts just long enough to ask once.
func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func groups(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	s.attach("a")
	if err := s.channels.Offer(t.Context(), wire.Offer{SessionID: "}"}); err != nil {
		t.Fatal(err)
	}
	s.offer()
	picky := s.runtime("picky", func(o *callruntime.Options) { o.Group = "picky:" + s.id })
	if c, err := picky.Accept(expired(t), func(o wire.Offer) bool { return o.TeamID == "demo" }); err == nil {
		t.Errorf("took %s", c.ID)
	}
	if c, err := s.runtime("r").Accept(t.Context(), func(o wire.Offer) bool { return o.SessionID == "}" || s.mine(o) }); err != nil || c.ID != s.id {
		t.Errorf("not left to others: %+v, %v", c, err)
	}
}

func liveMessages(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	listen(t, s.store)
	other, _ := connect(t, opts)
	listen(t, other)
	s.attach("a")
	c := s.take("r")
	s.send(c, "early")
	var ears [2]*browser
	for i, store := range []*Store{s.store, other} {
		ears[i] = &browser{}
		stop, err := NewChannels(store, s.limits).Subscribe(t.Context(), s.id, ears[i])
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
	}
	message := wire.ChannelMessage{Type: wire.TypeChat, MessageID: uuid.NewString(), Chat: jsontext.Value(`{"text":"once"}`)}
	for range 3 {
		if err := c.Send(t.Context(), message); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.SendAudio(t.Context(), jsontext.Value(`{"n":1}`)); err != nil {
		t.Fatal(err)
	}
	s.send(c, "last")
	for _, e := range ears {
		eventually(t, "messages", func() bool { return strings.HasSuffix(e.story(), "last") })
		// A cluster may still be passing on what was sent before.
		if strings.TrimPrefix(e.story(), ">1:early ") != "1>2:once audio 2>3:last" {
			t.Errorf("heard %q", e.story())
		}
	}
	if late := s.attach("b", resume(channel.Cursor{Epoch: s.attach("b").Head.Epoch})); texts(late.Missed) != "early once last" {
		t.Errorf("kept %q", texts(late.Missed))
	}
	for _, bad := range []wire.ChannelMessage{{Type: wire.TypeAudio, Audio: jsontext.Value("{}")}, {Type: wire.TypeChat}, {Type: "other"}, {Type: wire.TypePing},
		{Type: wire.TypeChat, Chat: jsontext.Value(`[]`)}, {Type: wire.TypeChat, MessageID: "a b", Chat: jsontext.Value(`{}`)},
		{Type: wire.TypeChat, Chat: jsontext.Value(`{"t":"` + strings.Repeat("x", callruntime.MaxMessageBytes) + `"}`)}} {
		if err := c.Send(t.Context(), bad); err == nil {
			t.Errorf("sent %.80s", bad.Type)
		}
	}
	// A runtime of another kind may send what cannot be told apart by lines: it is in the history.
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		return rueidis.NewLuaScript(lua.FastChannel("send")).Exec(ctx, client, kv.ChannelKeys(s.id), []string{"", "-", "", "", "{\n}"}).Error()
	})
	for _, e := range ears {
		eventually(t, "a gap", func() bool { return strings.HasSuffix(e.story(), "gap") })
	}
	// And the other way: audio is merged into what the runtime receives.
	eventually(t, "audio", func() bool {
		if err := s.channels.SendAudio(t.Context(), s.id, []byte(`{"type":"audio","audio":{"n":2}}`)); err != nil {
			t.Fatal(err)
		}
		d, err := c.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return d.Position == "" && d.Entry.Kind == wire.KindFrame && string(d.Entry.Message.Audio) == `{"n":2}`
	})
}

func opening(t *testing.T, opts Options) {
	s := newStage(t, opts, nil)
	r := s.runtime("r", func(o *callruntime.Options) { o.Lease = 3 * time.Second })
	call := callruntime.OpenOptions{ChannelID: s.id, TeamID: "team", EndpointID: "endpoint", CallID: "call", TransactionID: "transaction", Profile: []byte(`{}`)}
	c, err := r.Open(t.Context(), call)
	if err != nil || c.CallID != "call" || c.TransactionID != "transaction" {
		t.Fatalf("open: %+v, %v", c, err)
	}
	if _, err := r.Attach(t.Context(), "unknown:"+s.id); !errors.Is(err, callruntime.ErrLost) {
		t.Errorf("an unknown channel: %v", err)
	}
	for _, impossible := range []string{"", "}", "a}b"} {
		_, err := r.Attach(t.Context(), impossible)
		onlooker := r.Observe(impossible, "")
		_, receiving := onlooker.Receive(t.Context())
		for doing, err := range map[string]error{"attach": err, "receive": receiving, "end": onlooker.End(t.Context(), "x"),
			"send": onlooker.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeError, Error: jsontext.Value("{}")})} {
			if !errors.Is(err, callruntime.ErrLost) {
				t.Errorf("%s of the channel %q: %v", doing, impossible, err)
			}
		}
	}
	foreign := call
	foreign.TeamID = "other"
	if _, err := r.Open(t.Context(), foreign); !errors.Is(err, callruntime.ErrOtherTeam) {
		t.Errorf("another team: %v", err)
	}
	if _, err := s.runtime("other").Open(t.Context(), call); !errors.Is(err, callruntime.ErrClaimed) {
		t.Errorf("another runtime: %v", err)
	}
	again, err := s.runtime("r").Open(t.Context(), call) // the same one, started again
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(t.Context()); !errors.Is(err, callruntime.ErrClaimLost) {
		t.Errorf("the former one: %v", err)
	}
	item, err := again.Await(t.Context(), callruntime.AwaitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, awaiting := c.Await(t.Context(), callruntime.AwaitOptions{})
	for name, err := range map[string]error{
		"commit": c.Commit(t.Context(), "1-1"), "end": c.End(t.Context(), "x"), "await": awaiting, "cancel": c.Cancel(t.Context(), item.ID),
		"send": c.Send(t.Context(), wire.ChannelMessage{Type: wire.TypeError, Error: jsontext.Value("{}")}),
	} {
		if !errors.Is(err, callruntime.ErrClaimLost) {
			t.Errorf("%s by the former one: %v", name, err)
		}
	}
	if err := again.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Errorf("close of what is lost: %v", err)
	}
	next := s.take("next")
	onlooker := s.runtime("looker").Observe(s.id, "")
	s.send(onlooker, "on behalf")
	s.attach("a")
	s.frame("a", "1")
	_, seen := s.receive(onlooker, "1")
	if err := onlooker.Commit(t.Context(), seen); !errors.Is(err, callruntime.ErrClaimLost) {
		t.Errorf("commit by an onlooker: %v", err)
	}
	if events, _ := s.receive(next, "1"); strings.Join(events, " ") != "connected 1" {
		t.Errorf("the runtime saw %v", events)
	}
	if err := onlooker.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Open(t.Context(), call); !errors.Is(err, callruntime.ErrEnded) {
		t.Errorf("open of what has ended: %v", err)
	}
}

// browser is a channel.Live that remembers what it was told.
type browser struct{ ear }

func (b *browser) Messages(after channel.Cursor, list []channel.Message) {
	n := func(id string) string { n, _, _ := strings.Cut(id, "-"); return n }
	for _, m := range list {
		b.note(n(after.ID) + ">" + n(m.Cursor.ID) + ":" + texts([]channel.Message{m}))
		after = m.Cursor
	}
}
func (b *browser) Audio([]byte)         { b.note("audio") }
func (b *browser) Replaced(by string)   { b.note("replaced:" + by) }
func (b *browser) Closed(reason string) { b.note("closed:" + reason) }
func (b *browser) Gap()                 { b.note("gap") }
