package runtimeapi

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/auth"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/test/stores"
	"telapi/test/testkit"
)

// slowConn delays what is written.
type slowConn struct {
	net.Conn
	delay  *atomic.Int64
	queued chan func()
}

func (c *slowConn) Write(data []byte) (int, error) {
	due, data := time.Now().Add(time.Duration(c.delay.Load())), slices.Clone(data)
	c.queued <- func() {
		time.Sleep(time.Until(due))
		_, _ = c.Conn.Write(data)
	}
	return len(data), nil
}

func slowly(option rueidis.ClientOption, delay *atomic.Int64) rueidis.ClientOption {
	option.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		conn, err := d.DialContext(ctx, "tcp", address)
		c := &slowConn{conn, delay, make(chan func(), 1024)}
		go func() {
			for write := range c.queued {
				write()
			}
		}()
		return c, err
	}
	return option
}

// Other instances sweep while the store is slow, so a connection must not expire between two rounds.
func TestLiveConnectionDoesNotExpireWhileStoreIsSlow(t *testing.T) {
	t.Parallel()
	store := stores.OpenEmbedded(t)
	c, _ := newConn(t)
	c.resume = 0
	c.params.Authenticate = func(context.Context, string) (p auth.Principal, err error) { return p, context.Canceled }
	delay := &atomic.Int64{}
	r, err := calls.New(calls.Options{Store: slowly(store.ClientOption(), delay), Name: "r", Lease: Lease})
	testkit.Must(t, err)
	c.calls, c.service.Connect = r, func() (*calls.Runtime, error) { return r, nil }
	testkit.Must(t, c.service.register(t.Context(), c))
	delay.Store(int64(instanceGrace)) // plus tickInterval is more than the usual lifetime
	defer testkit.Start(t, c.service.Run)()
	defer delay.Store(0)
	client, err := rueidis.NewClient(store.ClientOption())
	testkit.Must(t, err)
	defer client.Close()
	expires := func() time.Time {
		score, err := client.Do(t.Context(), client.B().Zscore().Key(kv.ConnectionsKey).Member(c.id).Build()).AsFloat64()
		testkit.Must(t, err)
		return time.UnixMilli(int64(score))
	}
	first := expires()
	testkit.Until(t, "a round in which the store is slow", func() bool { return c.service.slow.Load() && expires().After(first) })
	round := tickInterval + 2*instanceGrace
	for start := time.Now(); time.Since(start) < 2*round; time.Sleep(20 * time.Millisecond) {
		if time.Since(start) > round && time.Now().After(expires()) {
			t.Fatal("the connection has expired")
		}
	}
}
