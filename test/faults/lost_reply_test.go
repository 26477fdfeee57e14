package faults

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// lossyProxy is a TCP proxy in front of Redis. After lose is set, it closes one
// connection instead of passing on a reply that contains lost.
type lossyProxy struct {
	lost []byte
	lose atomic.Bool
}

// start returns the URL of the proxy.
func (p *lossyProxy) start(t *testing.T, redis string) string {
	t.Helper()
	target, err := url.Parse(redis)
	if err != nil {
		t.Fatal(err)
	}
	server := target.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go p.pass(client, server)
		}
	}()
	target.Host = listener.Addr().String()
	return target.String()
}

func (p *lossyProxy) pass(client net.Conn, server string) {
	defer func() { _ = client.Close() }()
	upstream, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(upstream, client)
		_ = upstream.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := upstream.Read(buf)
		if bytes.Contains(buf[:n], p.lost) && p.lose.CompareAndSwap(true, false) {
			return
		}
		if _, failed := client.Write(buf[:n]); err != nil || failed != nil {
			return
		}
	}
}

// Redis takes a browser action, but its reply is lost. The browser resends the
// action, which is then acknowledged and written to the database.
func TestBrowserActionIsStoredAfterLostReply(t *testing.T) {
	t.Parallel()
	env, redis := harness.RealStores(t)
	proxy := &lossyProxy{lost: []byte("\r\nappended\r\n")}
	env["REDIS_URL"] = proxy.start(t, redis.URL())
	p := startService(t, env)
	b, token := p.connect(t)
	frame := harness.Frame("browser_action", b.Session, uuid.NewString(), "browserAction", `{"type":"pressed"}`)
	proxy.lose.Store(true)
	b.Write(frame)
	if code := b.CloseCode(); code != 4005 {
		t.Fatalf("close code %d, want 4005", code)
	}
	testkit.Until(t, "the browser reconnects", func() bool {
		conn, _, err := harness.Dial(t, p.Instance, token, "")
		b = &harness.Browser{Conn: conn, Session: b.Session, T: t}
		return err == nil
	})
	b.Expect(`"event":"ready"`)
	b.Write(frame)
	b.Expect(`"event":"ack"`)
	testkit.Until(t, "the action is stored", func() bool { return strings.Contains(dump(t, env["DATABASE_URL"]), "pressed") })
}
