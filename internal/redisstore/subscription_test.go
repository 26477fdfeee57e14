package redisstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

func TestSubscribeDeliversNothingAfterReturn(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s, _ := connect(t, redisOptions(r))
	rec := &recorder{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { s.Subscribe(ctx, rec); close(done) }()
	testkit.Until(t, "subscription", func() bool { return rec.recorded() == "up" })
	cancel()
	<-done
	testkit.Must(t, s.Announce(t.Context(), "late"))
	raw(t, s, func(ctx context.Context, c rueidis.Client) error {
		counts, err := c.Do(ctx, c.B().PubsubNumsub().Channel(kv.AnnounceTopic).Build()).AsIntMap()
		if err == nil && counts[kv.AnnounceTopic] != 0 {
			t.Errorf("%d subscriptions left, want 0", counts[kv.AnnounceTopic])
		}
		return err
	})
	testkit.Equal(t, "recorded", rec.recorded(), "up down")
}

// After an outage, subscribers are notified of a gap and can read the messages they
// missed.
func TestSubscribersAreNotifiedOfGap(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t, testkit.RedisDurable())
	s := newChannelFixture(t, redisOptions(r), nil)
	subscribe(t, s.store)
	head := s.attach("a").Head
	c := s.attachRuntime("r")
	sockets := make([]*browser, 20)
	for i := range sockets {
		sockets[i] = &browser{}
		stop, err := s.channels.Subscribe(t.Context(), s.id, sockets[i])
		testkit.Must(t, err)
		defer stop()
	}
	s.send(c, "1")
	r.Kill()
	r.Start()
	s.send(c, "2") // blocks until the store is available
	for _, socket := range sockets {
		testkit.Until(t, "the gap", func() bool { return strings.Contains(socket.recorded(), "gap") })
	}
	s.send(c, "3")
	for _, socket := range sockets {
		testkit.Until(t, "the next message", func() bool { return strings.Contains(socket.recorded(), "2>3:3") })
	}
	missed, ok, err := s.channels.Since(t.Context(), s.id, head)
	if err != nil || !ok || texts(missed) != "1 2 3" {
		t.Errorf("since: %q, complete %t, %v, want 1 2 3", texts(missed), ok, err)
	}
	s.expectFrame("a", "1", channel.Appended)
	s.expectReceived(c, "connected 1")
}

// All subscriptions of an instance share one connection, even if they are opened and
// closed concurrently.
func TestSubscriptionsShareOneConnection(t *testing.T) {
	t.Parallel()
	r := testkit.StartRedis(t)
	s := newChannelFixture(t, redisOptions(r), nil)
	subscribe(t, s.store)
	const sockets = 10_000
	subscriber := &browser{}
	stops := make([]func(), sockets)
	name := func(i int) string { return fmt.Sprintf("%s:%d", s.id, i/2) } // two subscriptions per session
	var wg sync.WaitGroup
	for worker := range 100 {
		wg.Go(func() {
			for i := worker; i < sockets; i += 100 {
				stop, err := s.channels.Subscribe(t.Context(), name(i), subscriber)
				if err != nil {
					t.Error(err)
					return
				}
				stops[i] = stop
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	r.MustDo("CLIENT", "KILL", "TYPE", "pubsub")
	// On a busy machine there can be further gaps.
	testkit.Until(t, "all subscribers get the gap", func() bool { return strings.Count(subscriber.recorded(), "gap") >= sockets })
	for i := 1; i < sockets; i += 2 {
		stops[i]()
	}
	for i := 0; i < sockets; i += 1000 {
		r.MustDo("PUBLISH", kv.BrowserTopic(name(i)), "X"+name(i))
		testkit.Until(t, "the close notice", func() bool { return strings.Count(subscriber.recorded(), "closed:"+name(i)) == 1 })
	}
	for i := 0; i < sockets; i += 2 {
		stops[i]()
	}
	testkit.Until(t, "only the subscriptions to announcements and beacons are left", func() bool {
		reply := r.MustDo("PUBSUB", "CHANNELS")
		names, err := reply.AsStrSlice()
		return err == nil && len(names) == 2
	})
	reply := r.MustDo("CLIENT", "LIST", "TYPE", "pubsub")
	clients, err := reply.ToString()
	if err != nil || strings.Count(clients, "id=") != 1 {
		t.Errorf("pub/sub connections: %s, %v, want 1", clients, err)
	}
	testkit.NoError(t, "subscribe again", testkit.ErrorOf(s.channels.Subscribe(t.Context(), name(0), subscriber)))
}

func TestLostRepliesDoNotDuplicateMessages(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	head := s.attach("a").Head
	replies := &atomic.Int64{}
	lossy := hookedConn{received: func(data []byte) bool { // every other reply to a send is lost
		return !bytes.Contains(data, []byte("\r\nsent\r\n")) || replies.Add(1)%2 == 0
	}}
	r := s.runtime("r", lossy.dial)
	c, err := r.Attach(t.Context(), calls.Claim{}, s.id)
	testkit.Must(t, err)
	operator := s.runtime("operator").Observe(s.id, "")
	pad := `","pad":"` + strings.Repeat("x", 4<<10) + `"}` // so that a batch is longer than a page of the history
	var want []string
	for round := range 4 {
		var messages []wire.ChannelMessage
		for n := range 60 {
			text := fmt.Sprint(round, ".", n)
			want = append(want, text)
			messages = append(messages, wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{"text":"` + text + pad)})
		}
		testkit.Must(t, c.Send(t.Context(), messages...))
		if round%3 == 0 { // not sent by the runtime
			s.send(operator, "operator")
			want = append(want, "operator")
		}
	}
	var got []string
	for page := s.attach("a", resume(head)).Missed; len(page) > 0; {
		got, head = append(got, texts(page)), page[len(page)-1].Cursor
		page, _, err = s.channels.Since(t.Context(), s.id, head)
		testkit.Must(t, err)
	}
	testkit.Equal(t, fmt.Sprintf("every other of %d replies was lost; history", replies.Load()), strings.Join(got, " "), strings.Join(want, " "))
}

// wakeups is a watcher that counts.
type wakeups chan struct{}

func (w wakeups) Wake()        { w <- struct{}{} }
func (w wakeups) Audio(string) {}

// A runtime receives small entries with their notices, and reads large ones. Reading finds
// that the store has lost an entry that came with a notice.
func TestEntriesArriveWithNotices(t *testing.T) {
	t.Parallel()
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	s.attach("a")
	woken := make(wakeups, 10)
	c, err := s.runtime("runtime").Attach(t.Context(), calls.Claim{Name: "runtime", Token: "token", Watcher: woken}, s.id)
	testkit.Must(t, err)
	<-woken // subscribed
	poll := func() (entries []string, err error) {
		list, again, err := c.Poll(t.Context(), 10, 1<<20, false)
		for _, d := range list {
			entries = append(entries, string(d.JSON))
		}
		if again <= 0 && err == nil {
			t.Errorf("Poll returned %q and wants to be called again at once", entries)
		}
		return entries, err
	}
	testkit.Must(t, testkit.ErrorOf(poll())) // of the connection

	frame := func(text string) (entry string) {
		entry = `{"kind":"frame","text":"` + text + `"}`
		s.append("a", channel.Frame{MessageID: uuid.NewString(), Entry: jsontext.Value(entry)})
		<-woken
		return entry
	}
	first, second := frame("first"), frame("second")
	s.do("DEL", kv.RuntimeStreamKey(s.id)) // so that they cannot be read
	if got, err := poll(); err != nil || strings.Join(got, " ") != first+" "+second {
		t.Errorf("Poll returned %q, %v; want the entries of both notices", got, err)
	}
	frame(strings.Repeat("x", 8<<10))
	if got, err := poll(); !errors.Is(err, calls.ErrLost) {
		t.Errorf("Poll returned %q, %v after a loss; want ErrLost", got, err)
	}
}
