package redisstore

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/test/testkit"
)

// lossyConn is a connection that closes instead of returning every other reply to a
// send.
type lossyConn struct {
	net.Conn
	replies *atomic.Int64
}

func (c lossyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if bytes.Contains(p[:n], []byte("\r\nsent\r\n")) && c.replies.Add(1)%2 == 1 {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

func TestLostRepliesDoNotDuplicateMessages(t *testing.T) {
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), nil)
	head := s.attach("a").Head
	replies := &atomic.Int64{}
	r := s.runtime("r", func(o *calls.Options) {
		o.Store.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", addr)
			return lossyConn{conn, replies}, err
		}
	})
	c, err := r.Attach(t.Context(), s.id)
	if err != nil {
		t.Fatal(err)
	}
	operator := s.runtime("operator").Observe(s.id, "")
	var want []string
	for round := range 10 {
		var waits []func() error
		for n := range 20 {
			text := fmt.Sprint(round, ".", n)
			want = append(want, text)
			waits = append(waits, c.SendAsync(t.Context(), wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{"text":"` + text + `"}`)}))
		}
		for _, wait := range waits {
			if err := wait(); err != nil {
				t.Fatal(err)
			}
		}
		if round%3 == 0 { // not sent by the runtime
			s.send(operator, "operator")
			want = append(want, "operator")
		}
	}
	if got := texts(s.attach("a", resume(head)).Missed); got != strings.Join(want, " ") {
		t.Errorf("every other of %d replies was lost; history:\n%s\nwant\n%s", replies.Load(), got, strings.Join(want, " "))
	}
}

// After a restart, a runtime may send a new message before it retries one whose reply
// it did not receive.
func TestNewMessageBeforeRetryIsKept(t *testing.T) {
	s := newChannelFixture(t, redisOptions(testkit.StartRedis(t)), func(l *wire.ChannelLimits) { l.HistoryMessages = 3 })
	head := s.attach("a").Head
	first := s.attachRuntime("r")
	s.send(first, "1", "2", "3", "4")
	again := wire.ChannelMessage{Type: wire.TypeChat, MessageID: "again", Timestamp: 17, Chat: jsontext.Value(`{"text":"again"}`)}
	if err := first.Send(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	_, _, _ = s.channels.Since(t.Context(), s.id, head) // trims the history
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		old, err := client.Do(ctx, client.B().Xrevrange().Key(kv.HistoryKey(s.id)).End("+").Start("-").Count(1).Build()).AsXRange()
		if err != nil {
			return err
		}
		words, err := rueidis.NewLuaScript(lua.Channel("send")).Exec(ctx, client, kv.ChannelKeys(s.id),
			[]string{"", "--", "", "- again", `{"type":"chat","chat":{"text":"new"}}`, old[0].FieldValues["message"], ""}).AsStrSlice()
		if got := strings.Join(words[1:], " "); got != "sent repeated" {
			t.Errorf("send: %s, want sent repeated", got)
		}
		return err
	})
}
