package e2e

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"telapi/callruntime"
	"telapi/internal/ratelimit"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
	"telapi/test/talk"
)

// The store is killed and started again under callbacks: whoever was answered
// 503 sends the same again, and everything is on the stream once and in order.
func TestCallbacksSurviveRedisRestart(t *testing.T) {
	redis := servers.StartRedis(t, servers.RedisDurable())
	env := boot.Env{"REDIS_URL": redis.URL(), "DATA_DIR": t.TempDir()}
	i := boot.Start(t, env)
	setLimit(t, i, ratelimit.Webhook, 1_000_000, time.Minute)
	c := openCall(t, i, talk.StartRuntime(t, env), "call-1")
	const count = 300
	var order []string
	items := make(chan callruntime.WorkItem, count)
	for range count {
		item := c.await(callruntime.AwaitOptions{})
		order = append(order, item.ID)
		items <- item
	}
	close(items)

	var taken, unsure, again atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for item := range items {
				asked503 := false
				poll.Until(t, "a callback is taken", func() bool {
					resp, body := post(t, i, item.Path, c.says(item.ID), "token", item.Token)
					switch {
					case resp.StatusCode == 202:
						taken.Add(1)
						return true
					case resp.StatusCode == 409 && asked503 && strings.Contains(body, `"duplicate":true`):
						again.Add(1)
						return true
					case resp.StatusCode == 503 && resp.Header.Get("Retry-After") != "":
						asked503 = true
						unsure.Add(1)
						return false
					}
					t.Errorf("got %d %s", resp.StatusCode, body)
					return true
				})
			}
		})
	}
	poll.Until(t, "callbacks are under way", func() bool { return taken.Load() > 50 })
	redis.Kill()
	poll.Until(t, "the outage is felt", func() bool { return unsure.Load() > 3 })
	redis.Start()
	wg.Wait()
	if taken.Load()+again.Load() != count {
		t.Errorf("%d taken, %d taken though the answer was lost, of %d", taken.Load(), again.Load(), count)
	}
	t.Logf("%d times 503, %d of which had been taken", unsure.Load(), again.Load())
	for n, want := range order {
		if e := talk.Receive(t, c.Channel); e.WorkItemID != want || e.Text != want {
			t.Fatalf("entry %d is of %s, want %s", n, e.WorkItemID, want)
		}
	}
	if rest := telapi(t, env, "channel", "tail", "call-1", "--json"); strings.Count(rest.stdout, "\n") != count {
		t.Errorf("there is more on the stream than was sent: %d entries", strings.Count(rest.stdout, "\n"))
	}
}
