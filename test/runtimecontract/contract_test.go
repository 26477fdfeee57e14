package runtimecontract

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/callback"
	"telapi/internal/channel"
	"telapi/internal/config"
	"telapi/internal/ratelimit"
	"telapi/internal/redisstore"
	"telapi/internal/usage"
	"telapi/test/poll"
	"telapi/test/servers"
)

func TestRuntimeWithPlainCommands(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := servers.StartRedis(t)
		converse(t, redisstore.Options{RedisOptions: config.RedisOptions{Addrs: []string{r.Addr()}}, Logger: log}, "default", "")
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		e, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{DataDir: t.TempDir()}, log)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		opts := e.Options(log)
		converse(t, opts, "default", opts.Password.Reveal())
	})
}

// converse runs a conversation. The runtime uses plain commands as the given user,
// everything else uses opts.
func converse(t *testing.T, opts redisstore.Options, user, password string) {
	ctx := t.Context()
	store := redisstore.Open(opts)
	t.Cleanup(store.Close)
	if err := store.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	settings := ratelimit.NewSettings(store, noMirror{}, opts.Logger, prometheus.NewRegistry())
	background, stop := context.WithCancel(ctx)
	t.Cleanup(stop)
	go settings.Run(background)
	go store.Subscribe(background, settings)

	redis, subscriber := dial(t, opts.Addrs[0], user, password), dial(t, opts.Addrs[0], user, password)
	console := dial(t, opts.Addrs[0], "default", opts.Password.Reveal())
	expect := func(got any, want string) {
		t.Helper()
		if fmt.Sprint(got) != want {
			t.Fatalf("got %v, want %s", got, want)
		}
	}

	// The service's side: a browser connects, its session is offered, and it sends a
	// message.
	browser := &browser{}
	service := redisstore.NewChannels(store, wire.DefaultChannelLimits())
	unsubscribe, err := service.Subscribe(ctx, "s-1", browser)
	if err != nil {
		t.Fatal(err)
	}
	defer unsubscribe()
	attached, err := service.Attach(ctx, channel.AttachRequest{ChannelID: "s-1", ConnectionID: "c-1", Lease: time.Minute, TeamID: "t-1", EndpointID: "e-1",
		Mode: "chat", Profile: []byte(`{"commandSources":["bot"]}`), Entry: []byte(`{"kind":"session","event":"connected"}`), Offer: []byte(`{"identity":{"id":"u-1"}}`)})
	if err != nil || !attached.Offer {
		t.Fatalf("attach: %+v, %v; want a session to offer", attached, err)
	}
	if err := service.Offer(ctx, wire.Offer{SessionID: "s-1", TeamID: "t-1", EndpointID: "e-1", Mode: "chat"}); err != nil {
		t.Fatal(err)
	}
	sendFrame := func(id string, want channel.Outcome) {
		t.Helper()
		got, _, err := service.Append(ctx, channel.Owner{ChannelID: "s-1", ConnectionID: "c-1", Number: attached.Number}, []channel.Frame{{MessageID: id, Chat: true, Entry: []byte(`{"kind":"frame","n":"` + id + `"}`)}})
		if err != nil || got[0] != want {
			t.Fatalf("frame %s: %s, %v; want %s", id, got, err, want)
		}
	}
	sendFrame("m-1", channel.Appended)

	// Accept.
	expect(redis.do("XGROUP", "CREATE", "telapi:offers", "my-runtimes", "0", "MKSTREAM"), "OK")
	offer := redis.do("XREADGROUP", "GROUP", "my-runtimes", "node-1", "COUNT", "1", "BLOCK", "5000", "STREAMS", "telapi:offers", ">")
	id := at(offer, 0, 1, 0, 0).(string)
	expect(at(offer, 0, 1, 0, 1), `[offer {"sessionId":"s-1","teamId":"t-1","endpointId":"e-1","mode":"chat"}]`)
	claim := redis.eval("claim", "s-1", "node-1", "token-1", "15000", "accept")
	expect(at(claim, 0), "claimed")
	expect(claim.([]any)[2:], `[t-1 e-1 chat   {"commandSources":["bot"]}   {"identity":{"id":"u-1"}}]`)
	expect(redis.eval("claim", "s-1", "node-2", "token-2", "15000", "accept"), "[taken]")
	expect(redis.do("XACK", "telapi:offers", "my-runtimes", id), "1")
	expect(redis.do("XDEL", "telapi:offers", id), "1")
	expect(at(redis.eval("claim", "s-1", "node-1", "token-1", "15000", "renew"), 0), "claimed")

	expired := redis.do("XADD", "telapi:offers", "*", "offer", "{}", "expiresAt", "1").(string)
	expect(redis.do("EVAL", redis.readScript("drop_offers"), "1", "telapi:offers", expired, "1000"), "[1 "+expired+" 1]")

	// Receive and commit.
	entries := redis.do("XRANGE", "telapi:ch:{s-1}:in", "-", "+", "COUNT", "100")
	expect(at(entries, 0, 1, 1), `{"kind":"session","event":"connected"}`)
	expect(at(entries, 1, 1, 1), `{"kind":"frame","n":"m-1"}`)
	position := at(entries, 0, 0).(string)
	expect(redis.eval("commit", "s-1", "token-1", position, "1000"), "committed")
	expect(redis.eval("commit", "s-1", "token-1", "99-1", "1000"), "unknown")

	// Subscribe to notices.
	subscriber.send("SUBSCRIBE", "telapi:ch:{s-1}:up")
	expect(subscriber.read(), "[subscribe telapi:ch:{s-1}:up 1]")
	sendFrame("m-2", channel.Appended)
	if notice := fmt.Sprint(at(subscriber.read(), 2)); !strings.HasPrefix(notice, "E3-") {
		t.Errorf("notice of the third entry is %q, want prefix E3-", notice)
	}
	if err := service.SendAudio(ctx, "s-1", []byte(`{"type":"audio"}`)); err != nil {
		t.Fatal(err)
	}
	expect(at(subscriber.read(), 2), `A{"type":"audio"}`)

	// Send durable messages (duplicates are dropped), disable text chat, send audio.
	hello := `{"type":"chat","sessionId":"s-1","messageId":"h-1","timestamp":1,"direction":"to_browser","chat":{"text":"hello"}}`
	first := redis.eval("send", "s-1", "token-1", "-", "", "h-1", hello)
	expect(at(first, 1), "sent")
	second := redis.eval("send", "s-1", "token-1", "-d", "", "h-1 -", hello, `{"type":"control"}`)
	expect(second, fmt.Sprint("[", at(second, 0), " repeated sent]"))
	expect(redis.eval("send", "s-1", "token-1", "d", at(first, 0).(string), "", `{"type":"control"}`), fmt.Sprint("[", at(second, 0), " repeated]"))
	expect(redis.eval("send", "s-1", "token-0", "-", "", "", hello), "[claim_lost]")
	expect(at(redis.evalFast("send", "s-1", "token-1", "-", at(second, 0).(string), "", `{"type":"config"}`), 1), "sent")
	redis.do("PUBLISH", "telapi:ch:{s-1}:down", `A{"type":"audio"}`)
	poll.Until(t, "messages reach the browser", func() bool {
		return browser.calls() == hello+` {"type":"control"} {"type":"config"} audio:{"type":"audio"}`
	})
	sendFrame("m-3", channel.ChatDisabled)
	missed, ok, err := service.Since(ctx, "s-1", attached.Head)
	if err != nil || !ok || len(missed) != 3 {
		t.Errorf("history after the attach: %v, complete: %v, %v; want 3 messages", missed, ok, err)
	}

	// After a restart the former claim is void and the position unchanged.
	reclaimed := redis.eval("claim", "s-1", "node-1", "token-3", "15000", "attach")
	expect(at(reclaimed, 0), "claimed")
	expect(at(reclaimed, 8), position)
	expect(redis.eval("commit", "s-1", "token-1", position, "1000"), "claim_lost")
	rest := redis.do("XRANGE", "telapi:ch:{s-1}:in", position, "+", "COUNT", "100")
	expect(at(rest, 1, 1, 1), `{"kind":"frame","n":"m-1"}`)
	expect(at(rest, 2, 1, 1), `{"kind":"frame","n":"m-2"}`)

	deliver := awaitResults(t, redis, subscriber, redisstore.NewCallbacks(store))

	// End: parked results are delivered before channel_ended.
	deliver("item-4", "fourth", callback.Parked)
	for range 2 {
		expect(redis.eval("end", "s-1", "token-3", "done", `{"kind":"channel_ended","reason":"done"}`), "done")
	}
	last := redis.do("XREVRANGE", "telapi:ch:{s-1}:in", "+", "-", "COUNT", "2")
	expect(at(last, 1, 1, 1), `{"workItemId":"item-4","kind":"bot_message","text":"fourth"}`)
	expect(at(last, 0, 1, 1), `{"kind":"channel_ended","reason":"done"}`)
	poll.Until(t, "the end reaches the browser", func() bool { return strings.HasSuffix(browser.calls(), " closed:done") })
	expect(at(redis.eval("send", "s-1", "token-3", "-", "", "", "{}"), 1), "ended")

	// A channel without a browser.
	open := func(team string) any {
		return redis.eval("claim", "call-1", "node-1", "token-4", "15000", "open", "", "epoch1", team, "e-1", "", "call-id", "transaction-id", "{}",
			"300", "600000", "10000", "8388608", "86400000", "90000000")
	}
	expect(open("t-1"), "[claimed epoch1 t-1 e-1  call-id transaction-id {}   ]")
	expect(open("t-2"), "[foreign]")
	expect(redis.eval("claim", "call-2", "node-1", "token-5", "15000", "attach"), "[not_found]")

	reportSpeech(t, redis, console, store)

	// A console saves limits.
	expect(console.do("SET", "telapi:limits", `{"tiers":{"api":{"max":7,"windowMs":60000}}}`), "OK")
	console.do("PUBLISH", "telapi:announce", "limits")
	poll.Until(t, "the new limits apply", func() bool { return settings.Current().Tiers.API.Max == 7 })
}

// awaitResults registers five work items. The first is cancelled, the second
// expires and the third is answered. The returned function posts a result.
func awaitResults(t *testing.T, redis, subscriber *client, service *redisstore.Callbacks) func(item, text string, want callback.Status) {
	digest := func(item string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte("secret of "+item))) }
	for i, ttl := range []string{"60000", "10000", "60000", "60000", "60000"} {
		item := fmt.Sprint("item-", i)
		await := func(digest string) any {
			return redis.eval("await", "s-1", "token-3", digest, "bot", "work_item", item, ttl, `{"kind":"timeout","workItemId":"`+item+`"}`)
		}
		reply := await(digest(item))
		if at(reply, 0) != "awaited" || len(at(reply, 1).(string)) != 13 {
			t.Fatalf("await replied %v, want awaited and the expiry in ms", reply)
		}
		if again := await(digest(item)); fmt.Sprint(again) != fmt.Sprint(reply) { // as after a lost reply
			t.Fatalf("repeated await replied %v, want %v as before", again, reply)
		}
		if another := await(digest("another")); at(another, 0) != "exists" {
			t.Fatalf("await with an ID that is in use replied %v, want exists", another)
		}
	}
	deliver := func(item, text string, want callback.Status) {
		t.Helper()
		known, err := service.Channel(t.Context(), "s-1")
		if err != nil {
			t.Fatal(err)
		}
		got, err := service.Deliver(t.Context(), callback.DeliverParams{
			Credential: callback.Credential{ChannelID: "s-1", Kind: wire.BotItem, Digest: digest(item)}, Epoch: known.Epoch, Park: true,
			CallbackID: "callback-" + item, Entries: [][]byte{[]byte(`{"kind":"bot_message","text":"` + text + `"}`)}})
		if err != nil || got.Status != want {
			t.Fatalf("result of %s: %+v, %v; want status %v", item, got, err, want)
		}
	}
	deliver("item-2", "second", callback.Parked)
	if got := redis.eval("cancel", "s-1", "token-3", "item-0"); got != "cancelled" {
		t.Fatalf("cancel replied %v, want cancelled", got)
	}
	for { // notices contain the time until the next work item expires
		notice := fmt.Sprint(at(subscriber.read(), 2))
		if notice[0] == 'E' {
			break // the work item has already expired on a slow machine
		}
		if ms, err := strconv.Atoi(strings.TrimPrefix(notice, "D")); err == nil && ms <= 10_000 {
			break
		}
	}
	poll.Until(t, "the work item expires", func() bool { return redis.eval("touch", "s-1").(int64) > 10_000 })
	newest := redis.do("XREVRANGE", "telapi:ch:{s-1}:in", "+", "-", "COUNT", "2")
	for i, want := range []string{`{"workItemId":"item-2","kind":"bot_message","text":"second"}`, `{"kind":"timeout","workItemId":"item-1"}`} {
		if got := at(newest, i, 1, 1); got != want {
			t.Errorf("entry %d from the end is %v, want %s", i, got, want)
		}
	}
	deliver("item-1", "late", callback.Invalid)
	deliver("item-0", "late", callback.Cancelled)
	if got := redis.eval("cancel", "s-1", "token-3", "item-2"); got != "no_item" {
		t.Errorf("cancel of an answered item replied %v, want no_item", got)
	}
	return deliver
}

// reportSpeech reports one text twice, as after a lost reply, and an invalid report.
func reportSpeech(t *testing.T, redis, console *client, store *redisstore.Store) {
	reports := &reportStore{}
	consumer := usage.NewConsumer(redisstore.NewReportStream(store), reports, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), time.Now)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { consumer.Run(ctx) })
	defer running.Wait()
	defer stop()
	report := fmt.Sprintf(`{"id":"%s","teamId":"t-1","endpointId":"e-1","provider":"p","voice":"v","model":"m","characters":42,"cached":true,"at":%d}`,
		"0192d0c2-7b6e-4c1a-9f6f-0a1d2b4c5d6e", time.Now().UnixMilli())
	for _, value := range []string{report, report, `{"characters":42}`} {
		redis.do("XADD", "telapi:usage", "*", "report", value)
	}
	poll.Until(t, "all reports are read", func() bool { return console.do("XLEN", "telapi:usage").(int64) == 0 })
	if got, want := reports.calls(), "t-1 e-1 p v m 42 true"; got != want {
		t.Errorf("counted %q, want %q", got, want)
	}
	rejected := console.do("XRANGE", "telapi:usage:refused", "-", "+")
	if got, want := fmt.Sprint(at(rejected, 0, 1)), `[report {"characters":42} reason id is not a UUID]`; got != want {
		t.Errorf("rejected %s, want %s", got, want)
	}
}

// reportStore counts each report ID once, like the database.
type reportStore struct {
	recorder
	ids sync.Map
}

func (s *reportStore) AddReports(_ context.Context, reports []wire.SpeechReport, _ time.Time) (counted int, _ error) {
	for _, r := range reports {
		if _, known := s.ids.LoadOrStore(r.ID, true); !known {
			counted++
			s.record(fmt.Sprint(r.TeamID, " ", r.EndpointID, " ", r.Provider, " ", r.Voice, " ", r.Model, " ", r.Characters, " ", r.Cached))
		}
	}
	return counted, nil
}

func (*reportStore) DeleteReports(context.Context, time.Time) error { return nil }

type noMirror struct{}

func (noMirror) Setting(context.Context, string) ([]byte, bool, error) { return nil, false, nil }
func (noMirror) SaveSetting(context.Context, string, []byte) error     { return nil }
func (noMirror) ChangeSetting(ctx context.Context, _ string, _ []byte, _ audit.Entry, confirm func(context.Context) error) error {
	return confirm(ctx)
}
