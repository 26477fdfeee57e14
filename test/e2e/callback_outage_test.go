package e2e

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"telapi/internal/calls"
	"telapi/internal/ratelimit"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Redis is killed and restarted while callbacks arrive. Providers repeat requests
// that got a 503, and every callback is in the runtime stream once and in order.
func TestCallbacksSurviveRedisRestart(t *testing.T) {
	redis := testkit.StartRedis(t, testkit.RedisDurable())
	env := harness.Env{"REDIS_URL": redis.URL(), "DATA_DIR": t.TempDir()}
	i := harness.Start(t, env)
	setLimit(t, i, ratelimit.Webhook, 1_000_000, time.Minute)
	c := openCall(t, i, harness.StartRuntime(t, env), "call-1")
	const count = 300
	var order []string
	items := make(chan calls.WorkItem, count)
	for range count {
		item := c.await(calls.AwaitOptions{})
		order = append(order, item.ID)
		items <- item
	}
	close(items)

	var accepted, unavailable, duplicates atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for item := range items {
				retried := false
				testkit.Until(t, "the callback is accepted", func() bool {
					resp, body := i.Post(t, item.Path, c.botMessage(item.ID), "token", item.Token)
					switch {
					case resp.StatusCode == 202:
						accepted.Add(1)
						return true
					case resp.StatusCode == 409 && retried && strings.Contains(body, `"duplicate":true`):
						duplicates.Add(1)
						return true
					case resp.StatusCode == 503 && resp.Header.Get("Retry-After") != "":
						retried = true
						unavailable.Add(1)
						return false
					}
					t.Errorf("callback: %d %s, want 202, 503 with Retry-After, or 409 after a 503", resp.StatusCode, body)
					return true
				})
			}
		})
	}
	testkit.Until(t, "50 callbacks are accepted", func() bool { return accepted.Load() > 50 })
	redis.Kill()
	testkit.Until(t, "callbacks get 503", func() bool { return unavailable.Load() > 3 })
	redis.Start()
	wg.Wait()
	if accepted.Load()+duplicates.Load() != count {
		t.Errorf("%d accepted, %d accepted without a response, want %d in total", accepted.Load(), duplicates.Load(), count)
	}
	t.Logf("%d responses were 503; %d of these callbacks had been accepted", unavailable.Load(), duplicates.Load())
	for n, want := range order {
		if e := harness.Receive(t, c.Channel); e.WorkItemID != want || e.Text != want {
			t.Fatalf("entry %d is of work item %s, want %s", n, e.WorkItemID, want)
		}
	}
	if tail := telapi(t, env, "channel", "tail", "call-1", "--json"); strings.Count(tail.stdout, "\n") != count {
		t.Errorf("the stream holds %d entries, want %d", strings.Count(tail.stdout, "\n"), count)
	}
}
