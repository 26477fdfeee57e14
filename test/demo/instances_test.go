package demo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"telapi/internal/httpapi"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// listInstances returns the instances of telapi dev, and the one that serves the
// session.
func listInstances(t *testing.T, i *harness.Instance, key, sessionID string) (list []httpapi.Instance, serving httpapi.Instance) {
	t.Helper()
	path := "/playground/instances"
	if sessionID != "" {
		path += "?sessionId=" + sessionID
	}
	var body struct{ Instances []httpapi.Instance }
	if err := json.NewDecoder(get(t, i, path, "", key).Body).Decode(&body); err != nil {
		t.Fatal(err)
	}
	for _, instance := range body.Instances {
		if instance.Serving {
			serving = instance
		}
	}
	return body.Instances, serving
}

func changeInstance(t *testing.T, i *harness.Instance, key string, number int, action string) {
	t.Helper()
	if resp, body := i.Post(t, fmt.Sprintf("/playground/instances/%d/%s", number, action), "", "X-API-Key", key); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("%s instance %d: status %d: %s", action, number, resp.StatusCode, body)
	}
}

// conversation is a browser that reconnects and resends what was not acknowledged.
type conversation struct {
	*harness.Browser
	i        *harness.Instance
	token    string
	cursor   string
	pending  []string // frames without an acknowledgement, oldest first
	answers  []string
	received map[string]int // times, by message ID
}

func startConversation(t *testing.T, i *harness.Instance, out devOutput) *conversation {
	t.Helper()
	id, token := harness.Issue(t, i, out.Key, map[string]any{"endpointId": out.EndpointID, "mode": "chat"})
	c := &conversation{Browser: &harness.Browser{Session: id, T: t}, i: i, token: token, received: map[string]int{}}
	c.connect("")
	return c
}

func (c *conversation) connect(query string) {
	c.T.Helper()
	c.Browser = harness.Connect(c.T, c.i, c.Session, c.token, query)
	for _, frame := range c.pending {
		c.Write(frame)
	}
}

func (c *conversation) say(text string) {
	frame := harness.Frame("chat", c.Session, uuid.NewString(), "chat", fmt.Sprintf(`{"text":%q}`, text))
	c.pending = append(c.pending, frame)
	_ = c.Conn.WriteMessage(1, []byte(frame)) // if the connection is lost, it is sent again
}

// waitForAnswers reads until the bot has given the number of answers and all frames
// are acknowledged. It reconnects when the connection is lost.
func (c *conversation) waitForAnswers(count int) {
	c.T.Helper()
	for len(c.answers) < count || len(c.pending) > 0 {
		m, err := c.Read()
		if err != nil {
			c.connect("?streamId=" + cmp.Or(c.cursor, "start"))
			continue
		}
		var status struct{ Event, StreamID, MessageID string }
		_ = json.Unmarshal(m.Status, &status) // empty for other types
		switch {
		case m.StreamID != "":
			c.cursor = m.StreamID
			c.received[m.MessageID]++
			if text := chatText(m); strings.HasPrefix(text, "You said") {
				c.answers = append(c.answers, strings.Split(text, `"`)[1])
			}
		case status.Event == "ready" && c.cursor == "":
			c.cursor = status.StreamID
		case status.Event == "ack":
			c.pending = slices.DeleteFunc(c.pending, func(frame string) bool { return strings.Contains(frame, status.MessageID) })
		}
	}
}

func chatText(m harness.Received) string {
	var chat struct{ Text string }
	_ = json.Unmarshal(m.Chat, &chat) // empty for other types
	return chat.Text
}

func TestConversationContinuesWhenItsInstanceIsKilled(t *testing.T) {
	t.Parallel()
	_, i, out := startDev(t, harness.Env{"DATA_DIR": t.TempDir()}, "--instances", "2")
	c := startConversation(t, i, out)
	var said []string
	say := func(text string) { said = append(said, text); c.say(text) }
	for round := range 2 {
		say(fmt.Sprint("before kill ", round))
		c.waitForAnswers(len(said))
		_, serving := listInstances(t, i, out.Key, c.Session)
		if serving.State != "running" || serving.PID == 0 {
			t.Fatalf("instance %+v serves the session, want a running one with a process", serving)
		}
		for n := range 10 {
			say(fmt.Sprint("in flight ", round, n))
		}
		changeInstance(t, i, out.Key, serving.Number, "kill")
		if err := syscall.Kill(serving.PID, 0); err != syscall.ESRCH {
			t.Errorf("process %d of the killed instance: %v, want no such process", serving.PID, err)
		}
		say(fmt.Sprint("after kill ", round))
		c.waitForAnswers(len(said))
		list, next := listInstances(t, i, out.Key, c.Session)
		if next.Number == serving.Number || list[serving.Number-1].State != "stopped" {
			t.Errorf("after instance %d was killed: %+v, want it stopped and the other one serving", serving.Number, list)
		}
		changeInstance(t, i, out.Key, serving.Number, "start")
		if list, _ := listInstances(t, i, out.Key, c.Session); list[0].State != "running" || list[1].State != "running" {
			t.Errorf("after the restart: %+v, want both running", list)
		}
	}
	if !slices.Equal(c.answers, said) {
		t.Errorf("got answers to %q, want %q: once and in order", c.answers, said)
	}
	for id, times := range c.received {
		if times != 1 {
			t.Errorf("message %s arrived %d times, want once", id, times)
		}
	}
	bothServe(t, i, out)
}

// bothServe checks that new sessions reach both instances, and that the one which
// serves a session drops its socket.
func bothServe(t *testing.T, i *harness.Instance, out devOutput) {
	t.Helper()
	var numbers []int
	testkit.Until(t, "both instances serve sessions", func() bool {
		b := out.connect(t, i, "chat")
		_, serving := listInstances(t, i, out.Key, b.Session)
		numbers = append(numbers, serving.Number)
		if resp, body := i.Post(t, "/playground/sessions/"+b.Session+"/drop", "", "X-API-Key", out.Key); resp.StatusCode != http.StatusNoContent {
			t.Errorf("drop: status %d: %s", resp.StatusCode, body)
		}
		return slices.Contains(numbers, 1) && slices.Contains(numbers, 2)
	})
}

func TestDevWithAllInstancesKilled(t *testing.T) {
	t.Parallel()
	p, i, out := startDev(t, harness.Env{"DATA_DIR": t.TempDir()}, "--instances", "2")
	changeInstance(t, i, out.Key, 1, "kill")
	list, _ := listInstances(t, i, out.Key, "")
	remaining := list[1].PID
	changeInstance(t, i, out.Key, 2, "kill")
	changeInstance(t, i, out.Key, 2, "kill") // has no effect
	if resp, body := i.Call(t, "GET", "/api/v1/endpoints", "X-API-Key", out.Key); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("without instances: status %d, want 503 with Retry-After: %s", resp.StatusCode, body)
	}
	if resp, body := i.Post(t, "/playground/instances/3/start", "", "X-API-Key", out.Key); resp.StatusCode != http.StatusNotFound {
		t.Errorf("instance 3: status %d, want 404: %s", resp.StatusCode, body)
	}
	if resp, body := i.Post(t, "/playground/instances/1/kill", ""); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without key: status %d, want 401: %s", resp.StatusCode, body)
	}
	changeInstance(t, i, out.Key, 2, "start")
	changeInstance(t, i, out.Key, 2, "start") // has no effect
	list, _ = listInstances(t, i, out.Key, "")
	if list[0].State != "stopped" || list[1].State != "running" || list[1].PID == remaining {
		t.Errorf("instances %+v, want only the second one running, in a new process", list)
	}
	b := out.connect(t, i, "chat")
	if err := p.Cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := b.CloseCode(); got != 1012 {
		t.Errorf("close code %d, want 1012", got)
	}
	if code := p.WaitExit(t); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if err := syscall.Kill(list[1].PID, 0); err != syscall.ESRCH {
		t.Errorf("process of the second instance: %v, want it to end with telapi dev", err)
	}
}

// A crashed telapi dev leaves no instance behind.
func TestInstancesEndWithDev(t *testing.T) {
	t.Parallel()
	p, i, out := startDev(t, harness.Env{"DATA_DIR": t.TempDir()}, "--instances", "2")
	list, _ := listInstances(t, i, out.Key, "")
	if err := p.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, instance := range list {
		testkit.Until(t, fmt.Sprint("instance ", instance.Number, " ends"), func() bool { return syscall.Kill(instance.PID, 0) == syscall.ESRCH })
	}
}
