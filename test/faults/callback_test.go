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

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Every callback is posted five times at once, to both instances. One request is
// routed, and four are rejected as duplicates. The embedded engine has a tenth of
// the load, because it is a tenth as fast.
func TestConcurrentPostsAreRoutedOnce(t *testing.T) {
	for _, c := range []struct {
		name      string
		calls     int // with 100 work items each
		instances int
		stores    func(t *testing.T) harness.Env
	}{
		{"embedded", 5, 1, func(t *testing.T) harness.Env { return harness.Env{"DATA_DIR": t.TempDir()} }},
		{"redis", 20, 2, func(t *testing.T) harness.Env { env, _ := harness.RealStores(t); return env }},
		{"redis cluster", 20, 2, func(t *testing.T) harness.Env { return harness.ClusterStores(t) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := c.stores(t)
			var instances []*harness.Instance
			for range c.instances {
				i, _ := serve(t, env)
				instances = append(instances, i)
			}
			p, r := newProvider(t, env, instances...), harness.StartRuntime(t, env)
			var routed, duplicates atomic.Int64
			var calls errgroup.Group
			calls.SetLimit(5)
			for n := range c.calls {
				channel := openCall(t, r, fmt.Sprintf("call-%d", n))
				calls.Go(func() error {
					order, err := postDuplicates(t.Context(), p, channel, &routed, &duplicates)
					if err != nil {
						return err
					}
					return checkStream(t.Context(), r, channel.ID, order)
				})
			}
			if err := calls.Wait(); err != nil {
				t.Error(err)
			}
			if tokens := int64(c.calls) * 100; routed.Load() != tokens || duplicates.Load() != 4*tokens {
				t.Errorf("%d callbacks were routed and %d rejected as duplicates, want %d and %d", routed.Load(), duplicates.Load(), tokens, 4*tokens)
			}
		})
	}
}

// postDuplicates registers 100 work items and posts each callback five times at
// once. It returns the IDs of the work items.
func postDuplicates(ctx context.Context, p *provider, c *calls.Channel, routed, duplicates *atomic.Int64) (order []string, err error) {
	for range 100 {
		item, err := c.Await(ctx, calls.AwaitOptions{})
		if err != nil {
			return nil, err
		}
		order = append(order, item.ID)
		var requests errgroup.Group
		for n := range 5 {
			requests.Go(func() error {
				resp, body, err := p.postCallback(ctx, n, c.ID, item)
				switch {
				case err != nil:
					return err
				case resp.StatusCode == 202:
					routed.Add(1)
				case isDuplicate(resp, body):
					duplicates.Add(1)
				default:
					return fmt.Errorf("callback: %d %s, want 202 or 409 with duplicate", resp.StatusCode, body)
				}
				return nil
			})
		}
		if err := requests.Wait(); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// checkStream checks that the runtime stream holds the callbacks of the work items
// in order.
func checkStream(ctx context.Context, r *calls.Runtime, channelID string, order []string) error {
	entries, err := r.Entries(ctx, channelID, "", len(order)+1)
	if err != nil {
		return err
	}
	var got []string
	for _, d := range entries {
		if d.Entry.Text != d.Entry.WorkItemID {
			return fmt.Errorf("work item %s has the text %s", d.Entry.WorkItemID, d.Entry.Text)
		}
		got = append(got, d.Entry.WorkItemID)
	}
	if fmt.Sprint(got) != fmt.Sprint(order) {
		return fmt.Errorf("stream of %s holds work items %v, want %v", channelID, got, order)
	}
	return nil
}

// workItem is a work item and its outcome.
type workItem struct {
	calls.WorkItem
	call       *calls.Channel
	unanswered bool      // no callback is posted
	accepted   time.Time // when the provider got the 202
	routed     time.Time // when the entry was appended to the stream
}

// Callbacks are posted in random order while one instance after the other is
// killed. The runtime receives them in the order of the work items. An unanswered
// work item times out and delays the others only until then.
func TestCallbackOrderSurvivesKilledInstances(t *testing.T) {
	const (
		channels   = 500
		each       = 20 // work items per channel
		unanswered = 10 // channels in which one work item gets no callback
		kills      = 5
	)
	env, _ := harness.RealStores(t)
	var addresses []*harness.Instance
	var running []*harness.Process
	for range 2 {
		i, process := serve(t, env)
		addresses, running = append(addresses, i), append(running, process)
	}
	p, r := newProvider(t, env, addresses...), harness.StartRuntime(t, env)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	calls := make([][]*workItem, channels)
	var registering errgroup.Group
	registering.SetLimit(16)
	for n := range calls {
		c := openCall(t, r, fmt.Sprintf("call-%d", n))
		registering.Go(func() (err error) {
			calls[n], err = register(ctx, c, each, n >= channels-unanswered) // last, so that they do not expire before the posting starts
			return err
		})
	}
	if err := registering.Wait(); err != nil {
		t.Fatal(err)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, items := range calls {
		group.Go(func() error { return receiveInOrder(ctx, items) })
	}
	answers := answeredInRandomOrder(slices.Concat(calls[:channels-unanswered]...))
	// Callbacks that have to wait for an unanswered work item are posted before it
	// times out.
	answers = append(answeredInRandomOrder(slices.Concat(calls[channels-unanswered:]...)), answers...)

	// Between two kills a part of the callbacks is posted, most of them before the
	// killed instance is restarted.
	part := len(answers)/kills + 1
	var done, retried atomic.Int64
	restarted := make(chan int, kills)
	queue := make(chan *workItem)
	for n := range 16 {
		group.Go(func() error {
			for item := range queue {
				tries, err := p.postCallbackWithRetry(ctx, n, item.call.ID, item.WorkItem)
				if err != nil {
					return err
				}
				item.accepted = time.Now()
				retried.Add(int64(tries - 1))
				done.Add(1)
			}
			return nil
		})
	}
	group.Go(func() error {
		defer close(queue)
		for n, item := range answers {
			if n%part == 0 && n > 0 {
				<-restarted
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
		testkit.Until(t, "a tenth of the part is posted", func() bool { return done.Load() > int64(n*part+part/10) })
		_ = running[n%2].Cmd.Process.Signal(syscall.SIGKILL)
		running[n%2].WaitExit(t)
		env["TELAPI_PORT"] = addresses[n%2].URL[strings.LastIndex(addresses[n%2].URL, ":")+1:]
		_, running[n%2] = serve(t, env)
		restarted <- n
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	waited := 0
	for _, items := range calls {
		waited += checkRoutingTimes(t, items)
	}
	if waited == 0 {
		t.Error("no callback waited for an unanswered work item: the test proves nothing")
	}
	t.Logf("%d callbacks, %d retries; %d waited for an unanswered work item", len(answers), retried.Load(), waited)
}

// answeredInRandomOrder returns the work items that get a callback.
func answeredInRandomOrder(items []*workItem) (answers []*workItem) {
	for _, item := range items {
		if !item.unanswered {
			answers = append(answers, item)
		}
	}
	rand.Shuffle(len(answers), func(a, b int) { answers[a], answers[b] = answers[b], answers[a] })
	return answers
}

// register registers work items, of which one gets no callback if oneUnanswered is
// set.
func register(ctx context.Context, c *calls.Channel, count int, oneUnanswered bool) (items []*workItem, err error) {
	missing := -1
	if oneUnanswered {
		missing = rand.IntN(count / 2)
	}
	for n := range count {
		item := &workItem{call: c, unanswered: n == missing}
		var options calls.AwaitOptions
		if item.unanswered {
			options.TTL = 15 * time.Second
		}
		if item.WorkItem, err = c.Await(ctx, options); err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

func receiveInOrder(ctx context.Context, items []*workItem) error {
	for n, item := range items {
		d, err := item.call.Receive(ctx)
		if err != nil {
			return err
		}
		want := wire.KindBotMessage
		if item.unanswered {
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

// checkRoutingTimes checks that every callback was routed as soon as it and all
// earlier work items were answered or timed out. It returns the number of callbacks
// that waited for an unanswered work item.
func checkRoutingTimes(t *testing.T, items []*workItem) (waited int) {
	const tolerance = time.Minute // Receive polls every 5 s, and the machine may be busy
	var free time.Time            // when all earlier work items were answered or timed out
	var timedOut time.Time        // when the unanswered work item timed out
	for _, item := range items {
		if item.unanswered {
			if item.routed.Before(item.ExpiresAt) || item.routed.After(latest(free, item.ExpiresAt).Add(tolerance)) {
				t.Errorf("work item %s timed out at %s, want %s or shortly after", item.ID, item.routed, item.ExpiresAt)
			}
			free, timedOut = latest(free, item.routed), item.routed
			continue
		}
		free = latest(free, item.accepted)
		if item.routed.After(free) {
			t.Errorf("work item %s was routed at %s, want %s or earlier", item.ID, item.routed, free)
		}
		if item.accepted.Before(timedOut) {
			waited++
		}
	}
	return waited
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
