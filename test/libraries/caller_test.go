package libraries

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// caller is a browser that reconnects, resumes, and sends again what was not
// acknowledged.
type caller struct {
	t              *testing.T
	url            string // of the service
	session, token string
	stopped        chan struct{}

	mu      sync.Mutex
	conn    *websocket.Conn // nil until the connection is ready
	cursor  string
	unacked []frame
	heard   []string // texts of chat messages
	ended   bool     // the service has closed the session
}

type frame struct{ id, json string }

// newCaller opens a session. The browser disconnects when the test ends.
func newCaller(t *testing.T, i *harness.Instance, tenant harness.Tenant) *caller {
	t.Helper()
	c := &caller{t: t, url: i.URL, stopped: make(chan struct{})}
	c.session, c.token = harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	var running sync.WaitGroup
	running.Go(func() {
		for c.connect() {
		}
	})
	t.Cleanup(func() {
		close(c.stopped)
		c.mu.Lock()
		if c.conn != nil {
			_ = c.conn.Close()
		}
		c.mu.Unlock()
		running.Wait()
	})
	return c
}

// connect reads from a new connection until it ends. It returns false after the last one.
func (c *caller) connect() (again bool) {
	select {
	case <-c.stopped:
		return false
	default:
	}
	c.mu.Lock()
	query := "?streamId=" + c.cursor
	c.mu.Unlock()
	if query == "?streamId=" {
		query = ""
	}
	d := websocket.Dialer{Subprotocols: []string{"telapi.v1", "telapi.bearer." + c.token}, HandshakeTimeout: testkit.Timeout}
	conn, _, err := d.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/ws/session"+query, nil)
	if err != nil {
		time.Sleep(50 * time.Millisecond) // the instance restarts
		return true
	}
	defer conn.Close()
	for {
		var m wire.ChannelMessage
		_, raw, err := conn.ReadMessage()
		if err == nil {
			err = json.Unmarshal(raw, &m)
		}
		c.mu.Lock()
		if err != nil {
			c.conn = nil
			c.ended = websocket.IsCloseError(err, 4503)
			defer c.mu.Unlock()
			return !c.ended
		}
		c.handle(conn, m, string(raw))
		c.mu.Unlock()
	}
}

// handle handles a frame of the service. The caller holds mu.
func (c *caller) handle(conn *websocket.Conn, m wire.ChannelMessage, raw string) {
	var payload struct {
		Event, MessageID, StreamID, Text, Code string
		Recovered                              bool
	}
	object, _ := m.Payload()
	if object != nil {
		_ = json.Unmarshal(*object, &payload)
	}
	switch {
	case m.Type == wire.TypeChat:
		c.heard = append(c.heard, payload.Text)
	case payload.Event == "ready":
		if c.cursor == "" {
			c.cursor = payload.StreamID
		}
		c.conn = conn
		for _, f := range c.unacked {
			_ = conn.WriteMessage(websocket.TextMessage, []byte(f.json)) // if it fails, the next connection sends it
		}
	case payload.Event == "ack":
		c.unacked = slices.DeleteFunc(c.unacked, func(f frame) bool { return f.id == payload.MessageID })
	case m.Type == wire.TypeError && payload.Code == "SERVICE_UNAVAILABLE": // the next connection sends the frame again
	case m.Type == wire.TypeReconnect && !payload.Recovered, m.Type == wire.TypeError:
		c.t.Errorf("browser received %s", raw)
	}
	if m.StreamID != "" {
		c.cursor = m.StreamID
	}
}

// say sends a chat message.
func (c *caller) say(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := uuid.NewString()
	f := frame{id, harness.Frame("chat", c.session, id, "chat", fmt.Sprintf(`{"text":%q}`, text))}
	c.unacked = append(c.unacked, f)
	if c.conn != nil {
		_ = c.conn.WriteMessage(websocket.TextMessage, []byte(f.json)) // if it fails, the next connection sends it
	}
}

// texts returns the chat messages that the browser has received.
func (c *caller) texts() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.heard)
}

// waitFor waits until the newest message is text.
func (c *caller) waitFor(text string) {
	c.t.Helper()
	testkit.Until(c.t, "the browser receives "+text, func() bool { return slices.Contains(c.texts(), text) })
}

// waitForMore waits until more than n messages have arrived, and returns the one after n.
func (c *caller) waitForMore(n int) string {
	c.t.Helper()
	testkit.Until(c.t, fmt.Sprintf("the browser receives message %d", n+1), func() bool { return len(c.texts()) > n })
	return c.texts()[n]
}

func (c *caller) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

// answer posts the result of a work item until the outcome is known. item is the chat
// message of a runtime that asks for it.
func answer(t *testing.T, item, result string) (status int) {
	t.Helper()
	var work struct{ WorkItemID, Token, URL string }
	if err := json.Unmarshal([]byte(item), &work); err != nil || work.Token == "" || work.WorkItemID == "" {
		t.Fatalf("the runtime sent %s, want a work item", item)
	}
	testkit.Until(t, "the callback is accepted", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, work.URL, strings.NewReader(result))
		testkit.Must(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("token", work.Token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false // the instance restarts
		}
		_ = resp.Body.Close()
		status = resp.StatusCode
		return status != http.StatusServiceUnavailable
	})
	return status
}
