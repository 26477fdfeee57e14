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

// caller is a browser whose runtime is under test.
type caller struct {
	*harness.Page
	t *testing.T

	mu    sync.Mutex
	heard []string // texts of chat messages
	ended bool     // the service has closed the session
}

// newCaller opens a session. The browser disconnects when the test ends.
func newCaller(t *testing.T, i *harness.Instance, tenant harness.Tenant) *caller {
	t.Helper()
	session, token := tenant.Session(t, i)
	c := &caller{t: t, Page: harness.NewPage(i.URL, session, token)}
	c.Handle = c.handle
	c.Acknowledged = func(string, bool) {}
	c.Rejected = func(*http.Response) {} // the instance restarts
	c.Delay = func(int) time.Duration { return 50 * time.Millisecond }
	c.Closed = func(err error) (again bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.ended = websocket.IsCloseError(err, 4503)
		return !c.ended
	}
	testkit.Start(t, c.Run)
	return c
}

func (c *caller) handle(m harness.Received) {
	var payload struct {
		Text, Code string
		Recovered  bool
	}
	if object, _ := m.Payload(); object != nil {
		_ = json.Unmarshal(*object, &payload) // those of other frames are not used
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m.Type == wire.TypeChat:
		c.heard = append(c.heard, payload.Text)
	case m.Type == wire.TypeError && payload.Code == "SERVICE_UNAVAILABLE": // the next connection sends the frame again
	case m.Type == wire.TypeReconnect && !payload.Recovered, m.Type == wire.TypeError:
		c.t.Errorf("browser received %s", m.Raw)
	}
}

// say sends a chat message.
func (c *caller) say(text string) { c.Chat(uuid.NewString(), text) }

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
