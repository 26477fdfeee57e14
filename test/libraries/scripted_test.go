package libraries

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/test/testkit"
)

// script plays a scenario of testdata/scenarios.txt, which describes the steps: it is the
// service, and it tells a program what to do with its library.
type script struct {
	t          *testing.T
	library    *library
	url        string
	handshakes chan handshake
	started    bool
	peers      []*peer // the newest connection is the last
	request    *request
	requests   map[string]*request // by name
	rejected   time.Time           // the last request
	variables  map[string]string
	calls      map[string]call
}

type handshake struct {
	w    http.ResponseWriter
	r    *http.Request
	done chan struct{} // closed when it is answered
}

// peer is the service's end of a connection.
type peer struct {
	*websocket.Conn
	greeted bool
	unread  []object // requests that "recv any" has not taken
}

type object = map[string]any

// request is a request of the runtime.
type request struct {
	peer *peer
	id   any
}

// call is a call of the library.
type call struct {
	id     int
	result chan result
}

// newScript starts a service for a library.
func newScript(t *testing.T, l *library) *script {
	t.Helper()
	key := "tk_" + rand.Text() + "_secret"
	s := &script{t: t, library: l, handshakes: make(chan handshake), variables: map[string]string{"big": strings.Repeat("x", 1<<20), "key": key}, requests: map[string]*request{}, calls: map[string]call{}}
	stopped := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if other := r.Header.Get("X-Api-Key"); other != "" && other != key {
			w.WriteHeader(http.StatusUnauthorized) // a runtime of an earlier test, whose server had this port
			return
		}
		h := handshake{w, r, make(chan struct{})}
		select {
		case s.handshakes <- h:
			<-h.done
		case <-stopped:
			w.WriteHeader(http.StatusUnauthorized) // ends the runtime
		}
	}))
	s.url, s.variables["url"] = server.URL, server.URL
	t.Cleanup(func() {
		if s.started {
			l.start(command{Runtime: s.url, Do: "close"})
		}
		close(stopped)
		for _, p := range s.peers {
			_ = p.Close()
		}
		server.Close()
	})
	return s
}

// play runs steps, one in each line.
func (s *script) play(steps string) {
	s.t.Helper()
	for line := range strings.Lines(steps) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			verb, rest, _ := strings.Cut(line, " ")
			s.step(verb, rest)
		}
	}
}

func (s *script) step(verb, rest string) {
	s.t.Helper()
	switch verb {
	case "call", "ok", "fails", "abandon", "gets", "start":
		s.control(verb, rest)
	case "http", "connect", "welcome", "claim":
		s.connect(verb, rest)
	case "recv":
		s.receive(rest)
	case "reply", "reject":
		s.answer(verb, rest)
	case "settle":
		s.play("call settled report\n recv " + rest + " report\n reply\n ok settled")
	case "old": // the connection before
		newest := s.peers
		s.peers = newest[:len(newest)-1]
		s.play(rest)
		s.peers = newest
	default:
		s.push(verb, rest)
	}
}

// control tells the program what to do.
func (s *script) control(verb, rest string) {
	s.t.Helper()
	name, rest, _ := strings.Cut(rest, " ")
	switch verb {
	case "start":
		options := object{"url": s.url, "key": s.variables["key"], "name": "test"}
		maps.Copy(options, s.object(name))
		s.started = true
		arg, _ := json.Marshal(options) // of texts and numbers
		s.result(call{0, s.library.start(command{Runtime: s.url, Do: verb, Arg: string(arg)})})
	case "call":
		if !s.started {
			s.play("start")
		}
		method, arg, _ := strings.Cut(rest, " ")
		channel := name
		if method != "open" && method != "accept" {
			channel, arg, _ = strings.Cut(arg, " ")
		}
		c := command{Runtime: s.url, Do: method, Channel: channel, Arg: s.expand(arg)}
		result := s.library.start(c)
		s.calls[name] = call{s.library.lastID, result}
	case "ok":
		if r := s.result(s.calls[name]); r.Error != "" {
			s.t.Fatalf("%s: %s %s", name, r.Error, r.Message)
		} else if !s.matches(r.OK, s.value(rest)) {
			s.t.Fatalf("%s: %v, want %s", name, r.OK, rest)
		}
	case "fails":
		if r := s.result(s.calls[name]); !r.failed(rest) {
			s.t.Fatalf("%s: %+v, want %s", name, r, rest)
		}
	case "abandon":
		s.library.start(command{Runtime: s.url, Do: "abandon", Arg: strconv.Itoa(s.calls[name].id)})
	case "gets":
		for want := range strings.FieldsSeq(rest) {
			r := s.result(call{0, s.library.start(command{Runtime: s.url, Do: "receive", Channel: name})})
			entry, _ := r.OK.(object)
			if entry["position"] != want && entry["kind"] != want && r.Error != want {
				s.t.Fatalf("received %+v, want %s", r, want)
			}
		}
	}
}

func (s *script) result(c call) result {
	s.t.Helper()
	select {
	case r := <-c.result:
		return r
	case <-time.After(testkit.Timeout):
		s.t.Fatal("the call does not return")
		return result{}
	}
}

// connect answers a handshake, and hello.
func (s *script) connect(verb, rest string) {
	s.t.Helper()
	if !s.started {
		s.play("start")
	}
	switch verb {
	case "http", "connect":
		var h handshake
		select {
		case h = <-s.handshakes:
		case <-time.After(testkit.Timeout):
			s.t.Fatal("the runtime does not connect")
		}
		defer close(h.done)
		if verb == "http" {
			status, body, _ := strings.Cut(rest, " ")
			code, _ := strconv.Atoi(status)
			h.w.WriteHeader(code)
			_, _ = h.w.Write([]byte(body))
			return
		}
		headers := object{"path": h.r.URL.Path}
		for name := range h.r.Header {
			headers[name] = h.r.Header.Get(name)
		}
		if !s.matches(headers, s.value(rest)) {
			s.t.Fatalf("handshake %v, want %s", headers, rest)
		}
		upgrader := websocket.Upgrader{Subprotocols: []string{wire.RuntimeProtocol}}
		conn, err := upgrader.Upgrade(h.w, h.r, nil)
		testkit.Must(s.t, err)
		s.peers = append(s.peers, &peer{Conn: conn})
	case "welcome":
		if len(s.peers) == 0 || s.peer().greeted {
			s.play("connect\n recv hello")
		}
		welcome := object{"instance": "i", "connection": fmt.Sprintf("connection %d", len(s.peers)), "resumed": []any{}, "pingIntervalMs": 60_000, "limits": object{"frameBytes": 1 << 20}}
		if strings.HasPrefix(rest, "[") {
			welcome["resumed"] = s.value(rest)
		} else {
			maps.Copy(welcome, s.object(rest))
		}
		s.peer().greeted = true
		s.reply(s.request, "ok", welcome)
	case "claim":
		s.play("welcome\n call s open s\n recv open")
		claimed := object{"channel": "s", "claim": "secret", "team": "t", "endpoint": "e", "position": ""}
		maps.Copy(claimed, s.object(rest))
		s.reply(s.request, "ok", claimed)
		s.play("ok s")
	}
}

// receive waits for a request of the runtime.
func (s *script) receive(rest string) {
	s.t.Helper()
	rest, unordered := strings.CutPrefix(strings.TrimSpace(rest), "any ")
	op, rest, _ := strings.Cut(rest, " ")
	name, rest := option(rest, "@")
	after, rest := option(rest, "+")
	p := s.peer()
	i := 0
	for ; ; i++ {
		if i == len(p.unread) {
			p.unread = append(p.unread, p.read(s.t, op))
		}
		if p.unread[i]["op"] == op || !unordered {
			break
		}
	}
	q := p.unread[i]
	p.unread = slices.Delete(p.unread, i, i+1)
	if q["op"] != op || !s.matches(q, s.value(rest)) {
		s.t.Fatalf("the runtime sent %v, want %s %s", q, op, rest)
	}
	if ms, _ := strconv.Atoi(after); time.Since(s.rejected) < time.Duration(ms-5)*time.Millisecond { // timers are rounded, in Node to 1 ms
		s.t.Errorf("the request is repeated after %v, want %s ms", time.Since(s.rejected), after)
	}
	s.request, s.variables["id"] = &request{p, q["id"]}, fmt.Sprint(q["id"])
	s.requests[name] = s.request
}

// read returns the next frame of the runtime.
func (p *peer) read(t *testing.T, op string) (q object) {
	t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(testkit.Timeout))
	_, frame, err := p.ReadMessage()
	if err == nil {
		err = jsonv2.Unmarshal(frame, &q) // as strict as the service
	}
	if err != nil {
		t.Fatalf("read a request %s: %s %v", op, frame, err)
	}
	return q
}

func (s *script) answer(verb, rest string) {
	s.t.Helper()
	name, rest := option(rest, "@")
	q := s.request
	if name != "" {
		q = s.requests[name]
	}
	if verb == "reply" {
		s.reply(q, "ok", s.object(rest))
		return
	}
	code, details, _ := strings.Cut(rest, " ")
	s.rejected = time.Now()
	s.reply(q, "error", object{"code": code, "message": "no", "details": s.value(details)})
}

func (s *script) reply(q *request, member string, value any) {
	_ = q.peer.WriteJSON(object{"id": q.id, member: value}) // the connection may have ended
}

// push sends frames that are not replies, or ends the connection.
func (s *script) push(verb, rest string) {
	s.t.Helper()
	p := s.peer()
	send := func(frame string) { _ = p.WriteMessage(websocket.TextMessage, []byte(frame)) }
	switch verb {
	case "push":
		send(s.expand(rest))
	case "entries":
		for position := range strings.FieldsSeq(rest) {
			send(fmt.Sprintf(`{"event":"entry","channel":"s","position":%q,"entry":{"kind":"metadata","channelId":"s","at":1,"metadata":{}}}`, position))
		}
	case "ends":
		send(fmt.Sprintf(`{"event":"entry","channel":"s","position":%q,"entry":{"kind":"channel_ended","channelId":"s","at":1,"reason":"bye"}}`, rest))
	case "lost":
		send(fmt.Sprintf(`{"event":"lost","channel":"s","at":%s}`, rest))
	case "claim_lost":
		send(fmt.Sprintf(`{"event":"claim_lost","channel":"s","claim":%q}`, rest))
	case "cut":
		_ = p.NetConn().Close()
	case "close":
		code, _ := strconv.Atoi(rest)
		testkit.Must(s.t, p.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(testkit.Timeout)))
		p.closed(s.t)
		_ = p.Close()
	case "closed":
		s.peers[len(s.peers)-2].closed(s.t)
	default:
		s.t.Fatalf("unknown step %q", verb)
	}
}

// closed waits until the runtime has closed the connection.
func (p *peer) closed(t *testing.T) {
	t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(testkit.Timeout))
	for {
		if _, _, err := p.ReadMessage(); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the runtime does not close the connection")
		} else if err != nil {
			return
		}
	}
}

func (s *script) peer() *peer { return s.peers[len(s.peers)-1] }
