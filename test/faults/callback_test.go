package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
	"telapi/test/talk"
)

// Every token is posted five times at once, over both instances: once it is
// routed, four times refused as a duplicate. The embedded engine is one instance
// and a tenth as fast: it gets a tenth of the tokens.
func TestConcurrentPostsAreRoutedOnce(t *testing.T) {
	for _, on := range []struct {
		name      string
		calls     int // with 100 tokens each
		instances int
		stores    func(t *testing.T) boot.Env
	}{
		{"embedded", 5, 1, func(t *testing.T) boot.Env { return boot.Env{"DATA_DIR": t.TempDir()} }},
		{"redis", 50, 2, func(t *testing.T) boot.Env { env, _ := realStores(t); return env }},
		{"redis cluster", 50, 2, func(t *testing.T) boot.Env {
			return boot.Env{"DATABASE_URL": servers.SharedPostgres(t).NewDatabase(t), "REDIS_URL": servers.StartRedisCluster(t).URL()}
		}},
	} {
		t.Run(on.name, func(t *testing.T) {
			env := on.stores(t)
			var instances []*boot.Instance
			for range on.instances {
				i, _ := serve(t, env)
				instances = append(instances, i)
			}
			p, r := newProvider(t, env, instances...), talk.StartRuntime(t, env)
			var routed, duplicates atomic.Int64
			var calls errgroup.Group
			calls.SetLimit(5)
			for n := range on.calls {
				c := openCall(t, r, fmt.Sprintf("call-%d", n))
				calls.Go(func() error {
					order, err := postTwins(t.Context(), p, c, &routed, &duplicates)
					if err != nil {
						return err
					}
					return onStream(t.Context(), r, c.ID, order)
				})
			}
			if err := calls.Wait(); err != nil {
				t.Error(err)
			}
			if tokens := int64(on.calls) * 100; routed.Load() != tokens || duplicates.Load() != 4*tokens {
				t.Errorf("%d routed and %d duplicates of %d tokens", routed.Load(), duplicates.Load(), tokens)
			}
		})
	}
}

// postTwins has 100 answers of a call awaited and each posted five times at once.
func postTwins(ctx context.Context, p *provider, c *callruntime.Channel, routed, duplicates *atomic.Int64) (order []string, err error) {
	for range 100 {
		item, err := c.Await(ctx, callruntime.AwaitOptions{})
		if err != nil {
			return nil, err
		}
		order = append(order, item.ID)
		var twins errgroup.Group
		for n := range 5 {
			twins.Go(func() error {
				resp, body, err := p.answer(ctx, n, c.ID, item)
				switch {
				case err != nil:
					return err
				case resp.StatusCode == 202:
					routed.Add(1)
				case duplicate(resp, body):
					duplicates.Add(1)
				default:
					return fmt.Errorf("got %d %s", resp.StatusCode, body)
				}
				return nil
			})
		}
		if err := twins.Wait(); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// onStream compares what stands on a call's stream with the items it should be of.
func onStream(ctx context.Context, r *callruntime.Runtime, channelID string, order []string) error {
	entries, err := r.Entries(ctx, channelID, "", len(order)+1)
	if err != nil {
		return err
	}
	var got []string
	for _, d := range entries {
		if d.Entry.Text != d.Entry.WorkItemID {
			return fmt.Errorf("%s was answered with %s", d.Entry.WorkItemID, d.Entry.Text)
		}
		got = append(got, d.Entry.WorkItemID)
	}
	if fmt.Sprint(got) != fmt.Sprint(order) {
		return fmt.Errorf("on the stream of %s are %v, want %v", channelID, got, order)
	}
	return nil
}

// awaited is a work item on its way.
type awaited struct {
	callruntime.WorkItem
	call   *callruntime.Channel
	never  bool      // nobody answers it
	taken  time.Time // when it was known to be taken, at the latest
	routed time.Time // when its entry was put on the stream
}

// Answers are posted in random order while one instance after the other is
// killed. They are received in the order of the work items without exception. An
// item that nobody answers is skipped once its time is over, and holds no other
// for longer.
func TestCallbackOrderSurvivesKilledInstances(t *testing.T) {
	const channels, each, silent, kills = 500, 20, 10, 5
	env, _ := realStores(t)
	var addresses []*boot.Instance
	var running []*boot.Process
	for range 2 {
		i, process := serve(t, env)
		addresses, running = append(addresses, i), append(running, process)
	}
	p, r := newProvider(t, env, addresses...), talk.StartRuntime(t, env)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	calls := make([][]*awaited, channels)
	var registering errgroup.Group
	registering.SetLimit(16)
	for n := range calls {
		c := openCall(t, r, fmt.Sprintf("call-%d", n))
		registering.Go(func() (err error) {
			calls[n], err = register(ctx, c, each, n >= channels-silent) // last, so that their time is not over before all begins
			return err
		})
	}
	if err := registering.Wait(); err != nil {
		t.Fatal(err)
	}
	conversing, ctx := errgroup.WithContext(ctx)
	for _, items := range calls {
		conversing.Go(func() error { return receiveInOrder(ctx, items) })
	}
	var answers []*awaited
	for _, item := range slices.Concat(calls...) {
		if !item.never {
			answers = append(answers, item)
		}
	}
	rand.Shuffle(len(answers), func(a, b int) { answers[a], answers[b] = answers[b], answers[a] })

	// Between two kills a part of the answers is posted, most of them while the
	// killed instance is not back yet.
	part := len(answers)/kills + 1
	var done, retried atomic.Int64
	recovered := make(chan int, kills)
	queue := make(chan *awaited)
	for n := range 16 {
		conversing.Go(func() error {
			for item := range queue {
				tries, err := p.insist(ctx, n, item.call.ID, item.WorkItem)
				if err != nil {
					return err
				}
				item.taken = time.Now()
				retried.Add(int64(tries - 1))
				done.Add(1)
			}
			return nil
		})
	}
	conversing.Go(func() error {
		defer close(queue)
		for n, item := range answers {
			if n%part == 0 && n > 0 {
				<-recovered
			}
			select {
			case queue <- item:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for n := range kills {
		poll.Until(t, "answers are under way", func() bool { return done.Load() > int64(n*part+part/10) })
		_ = running[n%2].Cmd.Process.Signal(syscall.SIGKILL)
		if !running[n%2].Ended(10 * time.Second) {
			t.Fatal("an instance outlives its kill")
		}
		env["TELAPI_PORT"] = addresses[n%2].URL[strings.LastIndex(addresses[n%2].URL, ":")+1:]
		_, running[n%2] = serve(t, env)
		recovered <- n
	}
	if err := conversing.Wait(); err != nil {
		t.Fatal(err)
	}
	held := 0
	for _, items := range calls {
		held += heldNoLongerThanNeeded(t, items)
	}
	if held == 0 {
		t.Error("no answer had to wait for one that never came")
	}
	t.Logf("%d answers, posted again %d times; %d waited for one that never came", len(answers), retried.Load(), held)
}

func register(ctx context.Context, c *callruntime.Channel, count int, oneIsNever bool) (items []*awaited, err error) {
	missing := -1
	if oneIsNever {
		missing = rand.IntN(count / 2)
	}
	for n := range count {
		item := &awaited{call: c, never: n == missing}
		var o callruntime.AwaitOptions
		if item.never {
			o.TTL = 5 * time.Second
		}
		if item.WorkItem, err = c.Await(ctx, o); err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func receiveInOrder(ctx context.Context, items []*awaited) error {
	for n, item := range items {
		d, err := item.call.Receive(ctx)
		if err != nil {
			return err
		}
		want := wire.KindBotMessage
		if item.never {
			want = wire.KindTimeout
		}
		if d.Entry.WorkItemID != item.ID || d.Entry.Kind != want {
			return fmt.Errorf("%s received %s of %s as entry %d, want %s of %s", item.call.ID, d.Entry.Kind, d.Entry.WorkItemID, n, want, item.ID)
		}
		ms, err := strconv.ParseInt(d.Position[strings.Index(d.Position, "-")+1:], 10, 64)
		if err != nil {
			return err
		}
		item.routed = time.UnixMilli(ms)
	}
	return nil
}

// heldNoLongerThanNeeded sees that every answer was routed as soon as it and all
// before it were there or given up, and counts those that were held by one that
// never came.
func heldNoLongerThanNeeded(t *testing.T, items []*awaited) (held int) {
	const late = 15 * time.Second // Receive looks every 5 s, whatever it has heard
	var free, givenUp time.Time
	for _, item := range items {
		if item.never {
			if item.routed.Before(item.ExpiresAt) || item.routed.After(latest(free, item.ExpiresAt).Add(late)) {
				t.Errorf("%s was given up at %s, its time was over at %s", item.ID, item.routed, item.ExpiresAt)
			}
			free, givenUp = latest(free, item.routed), item.routed
			continue
		}
		free = latest(free, item.taken)
		if item.routed.After(free) {
			t.Errorf("%s was held until %s, though nothing was in its way from %s on", item.ID, item.routed, free)
		}
		if item.taken.Before(givenUp) {
			held++
		}
	}
	return held
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
