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

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/channel"
	"telapi/test/testkit"
)

// channelTests run on every engine.
var channelTests = map[string]func(*testing.T, Options){
	"recovery is all or nothing":                     cursors,
	"history is read in pages":                       historyPages,
	"wiped store":                                    wipedStore,
	"one connection owns a session":                  sessionOwner,
	"a runtime polls when the owner's lease expires": ownerLeaseIsPolled,
	"presence":                                             presence,
	"duplicate frames are dropped":                         framesOnce,
	"old message IDs are dropped":                          messageIDs,
	"runtime controls text chat":                           textChat,
	"backpressure":                                         backpressure,
	"committed bytes are counted exactly":                  committedBytes,
	"committed entries are trimmed":                        trimming,
	"rollback after failover is detected":                  rollback,
	"losses are reported to both sides":                    losses,
	"loss found by a replaced connection is reported":      lossFoundByReplacedConnection,
	"loss found by several runtimes is reported once":      lossReportedOnce,
	"lost work item is awaited again":                      lostWorkItem,
	"expired work item that was lost is reported":          lostExpiredWorkItem,
	"lost connection was not replaced":                     lostConnection,
	"expired lease is reported to the runtime":             expiredLease,
	"all keys exist":                                       allKeysExist,
	"committed entries are bounded":                        committedEntriesAreBounded,
	"ended channel is small":                               endedChannelIsSmall,
	"uses of a channel credential are bounded":             usesAreBounded,
	"late calls have no effect":                            lateCalls,
	"ended channels reject operations":                     endedChannel,
	"idle channels end":                                    idleChannel,
	"frames of concurrent connections stay in order":       frameOrder,
	"one runtime claims a session":                         claims,
	"crashed runtime is replaced":                          crashedRuntimes,
	"unwanted session is left to others":                   unwantedSession,
	"a commit travels with a message":                      commitWithMessage,
	"a claim before the clock is known":                    claimWithoutClock,
	"a session has one offer at a time":                    oneOffer,
	"expired offers are dropped":                           expiredOffers,
	"messages are delivered live and kept":                 liveMessages,
	"released and expired claims are offered":              takeover,
	"callbacks offer sessions":                             callbackOffers,
	"operator lists channels":                              listedChannels,
	"messages sent again are kept once":                    resentMessages,
	"runtime opens, closes and reopens a channel":          openChannel,
	"message is held back until replicas have it":          heldMessages,
	"held messages keep their IDs":                         heldMessageIDs,
	"message is not shown again after a lost confirmation": lostConfirmation,
	"message IDs are bounded whatever else is added":       boundedMessageIDs,
	"session is offered after a loss and a lost runtime":   lossThenRelease,
	"session is offered after its release is lost":         lostRelease,
	"released claim is not renewed":                        releasedClaim,
	"every loss has a time":                                recovery,
	"loss is found after the end":                          resumeAfterEnd,
}

// channelFixture is a session's channel between a browser and a runtime.
type channelFixture struct {
	*testing.T
	store    *Store
	channels *Channels
	id       string
	limits   wire.ChannelLimits
	owners   map[string]channel.Owner // by connection: what the store has acknowledged
}

func newChannelFixture(t *testing.T, opts Options, change func(*wire.ChannelLimits)) *channelFixture {
	t.Helper()
	s, _ := connect(t, opts)
	limits := wire.DefaultChannelLimits()
	if change != nil {
		change(&limits)
	}
	return &channelFixture{t, s, NewChannels(s, limits), uuid.NewString(), limits, map[string]channel.Owner{}}
}

func (s *channelFixture) raw(operate func(context.Context, rueidis.Client) error) {
	s.Helper()
	raw(s.T, s.store, operate)
}

// do runs a command on a key and returns its reply.
func (s *channelFixture) do(command, key string, args ...string) (reply rueidis.RedisMessage) {
	s.Helper()
	s.raw(func(ctx context.Context, client rueidis.Client) (err error) {
		reply, err = client.Do(ctx, client.B().Arbitrary(command).Keys(key).Args(args...).Build()).ToMessage()
		return err
	})
	return reply
}

// number is do for a reply that is a number.
func (s *channelFixture) number(command, key string, args ...string) int64 {
	s.Helper()
	reply := s.do(command, key, args...)
	n, err := reply.AsInt64()
	testkit.Must(s, err)
	return n
}

// field returns a field of a hash.
func (s *channelFixture) field(key, name string) string {
	s.Helper()
	reply := s.do("HGET", key, name)
	text, err := reply.ToString()
	testkit.Must(s, err)
	return text
}

// stream returns the items of a stream.
func (s *channelFixture) stream(key string) []rueidis.XRangeEntry {
	s.Helper()
	reply := s.do("XRANGE", key, "-", "+")
	list, err := reply.AsXRange()
	testkit.Must(s, err)
	return list
}

// expectTTL checks that keys are kept for the idle time and at most the keep time.
func (s *channelFixture) expectTTL(keys ...string) {
	s.Helper()
	for _, key := range keys {
		if ttl := s.number("PTTL", key); ttl <= s.limits.IdleMs || ttl > s.limits.IdleMs+s.limits.KeepMs {
			s.Errorf("%s: TTL %d ms, want more than the idle time and at most the keep time in addition", key, ttl)
		}
	}
}

func (s *channelFixture) attachment(connection string) channel.AttachRequest {
	return channel.AttachRequest{
		ChannelID: s.id, ConnectionID: connection, Lease: time.Hour, TeamID: "team", EndpointID: "endpoint", Mode: "chat",
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
	s.owners[connection] = channel.Owner{ChannelID: s.id, ConnectionID: connection, Number: attached.Number, Cursor: attached.Head, LastEntry: attached.LastEntry}
	return attached
}

// owner describes a connection, which need not be attached.
func (s *channelFixture) owner(connection string) channel.Owner {
	owner := s.owners[connection]
	owner.ChannelID, owner.ConnectionID = s.id, connection
	return owner
}

func (s *channelFixture) detach(connection string) {
	s.Helper()
	if err := s.channels.Detach(s.Context(), s.owner(connection), s.entry(wire.KindSession, "disconnected")); err != nil {
		s.Fatalf("detach: %v", err)
	}
}

func (s *channelFixture) renew(connection string, reoffer bool) channel.RenewResult {
	s.Helper()
	result, err := s.channels.Renew(s.Context(), s.owner(connection), time.Hour, reoffer)
	if err != nil {
		s.Fatalf("renew: %v", err)
	}
	return result
}

func resume(c channel.Cursor) func(*channel.AttachRequest) {
	return func(a *channel.AttachRequest) { a.Resume = &c }
}

// frame appends a frame with name as its message ID and event.
func (s *channelFixture) frame(connection, name string) channel.Outcome {
	s.Helper()
	return s.append(connection, channel.Frame{MessageID: name, Entry: s.entry(wire.KindFrame, name)})[0]
}

func (s *channelFixture) append(connection string, frames ...channel.Frame) []channel.Outcome {
	s.Helper()
	owner := s.owner(connection)
	outcomes, lastEntry, err := s.channels.Append(s.Context(), owner, frames)
	if err != nil {
		s.Fatalf("append: %v", err)
	}
	if owner.LastEntry = lastEntry; lastEntry != "" {
		s.owners[connection] = owner
	}
	return outcomes
}

func (s *channelFixture) runtime(name string, change ...func(*calls.Options)) *calls.Runtime {
	s.Helper()
	opts := calls.Options{Store: s.store.ClientOption(), Name: name, Lease: time.Minute, Limits: s.limits}
	opts.Store.Dialer.Timeout = testkit.Timeout // the first connection must succeed, even on a busy machine
	for _, f := range change {
		f(&opts)
	}
	r, err := calls.New(opts)
	if err != nil {
		s.Fatalf("start runtime: %v", err)
	}
	s.Cleanup(r.Close)
	return r
}

// attachRuntime attaches a runtime to the channel.
func (s *channelFixture) attachRuntime(name string, change ...func(*calls.Options)) *calls.Channel {
	s.Helper()
	c, err := s.runtime(name, change...).Attach(s.Context(), calls.Claim{}, s.id)
	testkit.Must(s, err)
	return c
}

func (s *channelFixture) send(c *calls.Channel, texts ...string) {
	s.Helper()
	for _, text := range texts {
		m := wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{"text":"` + text + `"}`)}
		if err := c.Send(s.Context(), m); err != nil {
			s.Fatalf("send: %v", err)
		}
	}
}

// receive reads entries up to the event last. It returns their events and the
// position of the last one.
func (s *channelFixture) receive(c *calls.Channel, last string) (events []string, position string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), testkit.Timeout)
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

// expectFrame appends a frame and checks the outcome.
func (s *channelFixture) expectFrame(connection, name string, want channel.Outcome) {
	s.Helper()
	testkit.Equal(s, fmt.Sprintf("frame %s of connection %s", name, connection), s.frame(connection, name), want)
}

// expectRenewal renews the ownership of a connection and checks the outcome.
func (s *channelFixture) expectRenewal(connection string, want channel.Outcome) {
	s.Helper()
	testkit.Equal(s, fmt.Sprintf("renewal of connection %s", connection), s.renew(connection, false).Outcome, want)
}

// expectReceived reads entries up to the last of the events and compares all of them.
func (s *channelFixture) expectReceived(c *calls.Channel, want string) {
	s.Helper()
	if got, _ := s.receive(c, want[strings.LastIndex(want, " ")+1:]); strings.Join(got, " ") != want {
		s.Errorf("the runtime received %v, want [%s]", got, want)
	}
}
