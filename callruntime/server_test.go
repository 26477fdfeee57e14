package callruntime_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gorilla/websocket"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// timeout is how long anything may take. It is long so that tests pass on a busy
// machine.
const timeout = time.Minute

// service is a scripted service: the test plays its part, frame by frame.
type service struct {
	t     *testing.T
	url   string
	conns chan *websocket.Conn
}

// peer is the service's end of one connection.
type peer struct {
	t    *testing.T
	conn *websocket.Conn
}

// received is a request of the runtime.
type received struct {
	wire.Request
	Raw string `json:"-"`

	Resume     []wire.Resume         `json:"resume"`
	Position   string                `json:"position"`
	WorkItemID string                `json:"workItemId"`
	Messages   []wire.ChannelMessage `json:"messages"`
}

// startService starts a service. reject, if not nil, may answer a handshake itself.
func startService(t *testing.T, reject func(http.ResponseWriter, *http.Request) bool) *service {
	t.Helper()
	s := &service{t: t, conns: make(chan *websocket.Conn, 100)}
	upgrader := websocket.Upgrader{Subprotocols: []string{wire.RuntimeProtocol}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != wire.RuntimePath || r.Header.Get("X-Api-Key") != "tk_1_secret" {
			t.Errorf("handshake %s with key %q", r.URL.Path, r.Header.Get("X-Api-Key"))
		}
		if reject != nil && reject(w, r) {
			return
		}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			t.Errorf("upgrade: %v", err)
			return
		}
		s.conns <- conn
	}))
	s.url = server.URL
	t.Cleanup(func() {
		server.Close()
		for len(s.conns) > 0 {
			_ = (<-s.conns).Close()
		}
	})
	return s
}

// start starts a service and a runtime.
func start(t *testing.T) (*service, *callruntime.Runtime) {
	t.Helper()
	s := startService(t, nil)
	return s, s.runtime()
}

func (s *service) runtime() *callruntime.Runtime {
	s.t.Helper()
	r, err := callruntime.New(callruntime.Options{URL: s.url, Key: "tk_1_secret", Name: "test"})
	must(s.t, err)
	s.t.Cleanup(r.Close)
	return r
}

// accept waits for the next connection.
func (s *service) accept() *peer {
	s.t.Helper()
	select {
	case conn := <-s.conns:
		s.t.Cleanup(func() { _ = conn.Close() })
		return &peer{s.t, conn}
	case <-time.After(timeout):
		s.t.Fatal("the runtime does not connect")
		return nil
	}
}

// welcome waits for the next connection and replies to its hello. It returns the claims
// that the runtime wants to resume.
func (s *service) welcome(resumed ...wire.Resumed) (*peer, []wire.Resume) {
	s.t.Helper()
	p := s.accept()
	hello := p.read(wire.OpHello)
	p.reply(hello, wire.Welcome{Instance: "a", Resumed: resumed, PingIntervalMs: 60_000})
	return p, hello.Resume
}

// read returns the next request.
func (p *peer) read(op wire.Op) received {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(timeout))
	_, raw, err := p.conn.ReadMessage()
	if err != nil {
		p.t.Fatalf("read a request %s: %v", op, err)
	}
	q := received{Raw: string(raw)}
	if err := json.Unmarshal(raw, &q); err != nil || q.Op != op || q.ID < 1 {
		p.t.Fatalf("got %s, want a request %s with an id (%v)", raw, op, err)
	}
	return q
}

// closed waits until the runtime has closed the connection.
func (p *peer) closed() {
	p.t.Helper()
	_ = p.conn.SetReadDeadline(time.Now().Add(timeout))
	for {
		if _, raw, err := p.conn.ReadMessage(); errors.Is(err, context.DeadlineExceeded) {
			p.t.Fatal("the runtime does not close the connection")
		} else if err != nil {
			return
		} else {
			p.t.Logf("skip %s", raw)
		}
	}
}

// write sends a frame: a string as it is, anything else as JSON.
func (p *peer) write(v any) {
	p.t.Helper()
	raw, isText := v.(string)
	if !isText {
		encoded, err := json.Marshal(v)
		must(p.t, err)
		raw = string(encoded)
	}
	must(p.t, p.conn.WriteMessage(websocket.TextMessage, []byte(raw)))
}

func (p *peer) reply(q received, ok any) {
	p.t.Helper()
	raw, err := json.Marshal(ok)
	must(p.t, err)
	p.write(wire.Reply{ID: q.ID, OK: raw})
}

func (p *peer) reject(q received, code string) {
	p.t.Helper()
	p.write(wire.Reply{ID: q.ID, Error: &wire.RuntimeError{Code: code, Message: "no"}})
}

// entries pushes chat entries of the channel "s" with these positions.
func (p *peer) entries(positions ...string) {
	p.t.Helper()
	for _, position := range positions {
		p.write(wire.Push{Event: wire.PushEntry, Channel: "s", Position: position, Entry: jsontext.Value(`{"kind":"metadata","channelId":"s","metadata":"` + position + `"}`)})
	}
}

// close closes the connection with a code.
func (p *peer) close(code int) {
	p.t.Helper()
	must(p.t, p.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(timeout)))
	p.closed()
	_ = p.conn.Close()
}

// cut ends the connection like a lost network.
func (p *peer) cut() { _ = p.conn.NetConn().Close() }

// claim lets the runtime accept the session "s" after the committed position.
func claim(t *testing.T, p *peer, r *callruntime.Runtime, committed string) *callruntime.Channel {
	t.Helper()
	type result struct {
		c   *callruntime.Channel
		err error
	}
	accepted := make(chan result, 1)
	go func() {
		c, err := r.Accept(ctx(t), wire.Accept{Modes: []string{"chat"}})
		accepted <- result{c, err}
	}()
	p.reply(p.read(wire.OpAccept), wire.Claimed{Channel: "s", Claim: "secret", Team: "t", Endpoint: "e", Session: &wire.Offer{SessionID: "s"}, Position: committed})
	got := <-accepted
	if got.err != nil {
		t.Fatal(got.err)
	}
	return got.c
}

// claimed starts a service and a runtime that has accepted the session "s".
func claimed(t *testing.T, committed string) (*service, *callruntime.Runtime, *peer, *callruntime.Channel) {
	t.Helper()
	s, r := start(t)
	p, _ := s.welcome()
	return s, r, p, claim(t, p, r, committed)
}

// settle waits until the runtime has handled all frames of the service.
func settle(t *testing.T, p *peer, r *callruntime.Runtime) {
	t.Helper()
	reported := async(func() error { return r.ReportSpeech(ctx(t), wire.SpeechReport{Characters: 1}) })
	p.reply(p.read(wire.OpReport), struct{}{})
	must(t, reported())
}

// ctx returns a context that ends with the test, or when it takes too long.
func ctx(t *testing.T) context.Context {
	t.Helper()
	c, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	return c
}

// expect receives entries at these positions.
func expect(t *testing.T, c *callruntime.Channel, positions ...string) {
	t.Helper()
	for _, want := range positions {
		d, err := c.Receive(ctx(t))
		if err != nil || d.Position != want {
			t.Fatalf("received %q, %v, want %q", d.Position, err, want)
		}
	}
}

// expectError receives an error.
func expectError(t *testing.T, c *callruntime.Channel, want error) {
	t.Helper()
	if d, err := c.Receive(ctx(t)); !errors.Is(err, want) {
		t.Fatalf("received %q, %v, want %v", d.Position, err, want)
	}
}

// async runs f in a goroutine. The returned function waits for its result.
func async(f func() error) (wait func() error) {
	result := make(chan error, 1)
	go func() { result <- f() }()
	return func() error {
		select {
		case err := <-result:
			return err
		case <-time.After(timeout):
			return errors.New("timed out")
		}
	}
}

func chat(text string) wire.ChannelMessage {
	return wire.ChannelMessage{Type: wire.TypeChat, Chat: jsontext.Value(`{"text":"` + text + `"}`)}
}

// These are those of package testkit. The library's tests don't import it, so that users of the
// library need not list its dependencies.

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func noError(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}
