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

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/test/servers"
)

// broken is a connection that is lost with every other answer to a message.
type broken struct {
	net.Conn
	answers *atomic.Int64
}

func (b broken) Read(p []byte) (int, error) {
	n, err := b.Conn.Read(p)
	if bytes.Contains(p[:n], []byte("\r\nsent\r\n")) && b.answers.Add(1)%2 == 1 {
		_ = b.Close()
		return 0, io.EOF
	}
	return n, err
}

func TestLostRepliesDoNotDuplicateMessages(t *testing.T) {
	s := newChannelFixture(t, redisOptions(servers.StartRedis(t)), nil)
	head := s.attach("a").Head
	answers := &atomic.Int64{}
	r := s.runtime("r", func(o *callruntime.Options) {
		o.Store.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			conn, err := d.DialContext(ctx, "tcp", addr)
			return broken{conn, answers}, err
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
		if round%3 == 0 { // the runtime does not know of it
			s.send(operator, "operator")
			want = append(want, "operator")
		}
	}
	if got := texts(s.attach("a", resume(head)).Missed); got != strings.Join(want, " ") {
		t.Errorf("of %d answers every other was lost; kept are\n%s\nnot\n%s", answers.Load(), got, strings.Join(want, " "))
	}
}

// A runtime that was started again may say something new before it sends again
// what it does not know the fate of.
func TestNewMessageBeforeRepetitionIsKept(t *testing.T) {
	s := newChannelFixture(t, redisOptions(servers.StartRedis(t)), func(l *wire.ChannelLimits) { l.HistoryMessages = 3 })
	head := s.attach("a").Head
	first := s.take("r")
	s.send(first, "1", "2", "3", "4")
	again := wire.ChannelMessage{Type: wire.TypeChat, MessageID: "again", Timestamp: 17, Chat: jsontext.Value(`{"text":"again"}`)}
	if err := first.Send(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	_, _, _ = s.channels.Since(t.Context(), s.id, head) // trims the history
	s.raw(func(ctx context.Context, client rueidis.Client) error {
		old, err := client.Do(ctx, client.B().Xrevrange().Key(kv.History(s.id)).End("+").Start("-").Count(1).Build()).AsXRange()
		if err != nil {
			return err
		}
		words, err := rueidis.NewLuaScript(lua.Channel("send")).Exec(ctx, client, kv.ChannelKeys(s.id),
			[]string{"", "--", "", "- again", `{"type":"chat","chat":{"text":"new"}}`, old[0].FieldValues["message"]}).AsStrSlice()
		if got := strings.Join(words[1:], " "); got != "sent repeated" {
			t.Errorf("they were %s", got)
		}
		return err
	})
}
