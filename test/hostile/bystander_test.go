package hostile

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"telapi/test/poll"
	"telapi/test/talk"
)

// bystander is a client that uses the service as intended: it checks the health and
// sends frames.
type bystander struct {
	target  *target
	browser *talk.Browser
}

// request measures one check of the health and one acknowledgement. Both must succeed,
// in whatever time a busy machine needs.
func (b *bystander) request() (health, ack time.Duration) {
	start := time.Now()
	poll.Until(b.target, "a bystander gets 200 from /health", func() bool { return b.target.instance.HealthStatus() == http.StatusOK })
	health = time.Since(start)
	start = time.Now()
	id := b.browser.Chat("hello")
	if m, err := b.browser.Read(); err != nil || !strings.Contains(m.Raw, id) {
		b.target.Errorf("a bystander received %s, %v; want its acknowledgement", m.Raw, err)
	}
	return health, time.Since(start)
}

func (b *bystander) sample(n int) string {
	times := 0
	return b.sampleWhile(func() bool { times++; return times <= n })
}

func (b *bystander) sampleUntil(done <-chan struct{}) string {
	return b.sampleWhile(func() bool {
		select {
		case <-done:
			return false
		default:
			return true
		}
	})
}

// sampleWhile sends requests, fewer than the limit of a connection, and returns the
// 99th percentiles.
func (b *bystander) sampleWhile(more func() bool) string {
	var healths, acks []time.Duration
	pace := time.NewTicker(25 * time.Millisecond)
	defer pace.Stop()
	for more() && !b.target.Failed() {
		health, ack := b.request()
		healths, acks = append(healths, health), append(acks, ack)
		<-pace.C
	}
	p99 := func(all []time.Duration) time.Duration {
		if len(all) == 0 {
			return 0
		}
		slices.Sort(all)
		return all[len(all)*99/100].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("health p99 %s, ack p99 %s, %d samples", p99(healths), p99(acks), len(acks))
}
