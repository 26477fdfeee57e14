package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/leaks"
	"telapi/test/testkit"
)

// After SIGTERM a request in flight finishes, and the process exits with 0.
func TestSIGTERMDrains(t *testing.T) {
	i, p := harness.Serve(t, nil)

	conn, err := net.Dial("tcp", strings.TrimPrefix(i.URL, "http://"))
	testkit.Must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = io.WriteString(conn, "GET /openapi.yaml HTTP/1.1\r\nHost: x\r\n") // half a request
	testkit.Must(t, err)
	testkit.Must(t, p.Cmd.Process.Signal(syscall.SIGTERM))
	testkit.Until(t, "the instance drains", func() bool { return p.Stderr.Has(`"draining"`) })
	_, err = io.WriteString(conn, "\r\n")
	testkit.Must(t, err)
	response, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(response), "HTTP/1.1 200") || !strings.Contains(string(response), "Connection: close") {
		t.Errorf("request in flight: %v %.200s, want 200 with Connection: close", err, response)
	}
	testkit.Equal(t, "exit code", p.WaitExit(t), 0)
	if !p.Stderr.Has("drained") {
		t.Error("the log does not report the drain")
	}
}

func TestStopLeavesNoGoroutines(t *testing.T) {
	envs := []harness.Env{{}, realStores(t)}
	before := goleak.IgnoreCurrent() // ignore the goroutines that supervise the real servers
	for _, env := range envs {
		i, tenant := startTenant(t, env)
		i.Call(t, "GET", "/api/v1/endpoints", "X-API-Key", tenant.Key)
		i.Client.CloseIdleConnections()
		if err := i.Stop(); err != nil {
			t.Error(err)
		}
	}
	leaks.Verify(t, before)
}

// devServer is "telapi dev" on embedded stores. It can be restarted on the same port
// and data directory.
type devServer struct {
	*harness.Instance
	t       *testing.T
	env     harness.Env
	process *harness.Process
	output  harness.DevOutput
}

func startDevServer(t *testing.T) *devServer {
	d := &devServer{t: t, env: harness.Env{"TELAPI_PORT": fmt.Sprint(testkit.FreePort(t)), "DATA_DIR": t.TempDir()}}
	d.start()
	return d
}

func (d *devServer) start() {
	d.t.Helper()
	d.Instance, d.process, d.output = harness.Dev(d.t, d.env, "--no-demo")
}

func (d *devServer) stop(signal syscall.Signal, exit int) {
	d.t.Helper()
	_ = d.process.Cmd.Process.Signal(signal)
	testkit.Equal(d.t, fmt.Sprintf("after %v: exit", signal), d.process.WaitExit(d.t), exit)
}

// conversation is a session with a browser and a runtime.
type conversation struct {
	token   string
	browser *harness.Browser
	channel *callruntime.Channel
}

// open starts a session with a browser and a runtime. The runtime has received the
// browser's connected event.
func (d *devServer) open() *conversation {
	d.t.Helper()
	c := &conversation{}
	c.browser, c.token = d.output.Connect(d.t, d.Instance, "chat")
	c.channel = harness.Accept(d.t, harness.ConnectRuntime(d.t, d.URL, d.output.Key))
	if e := harness.Receive(d.t, c.channel); e.Event != "connected" {
		d.t.Fatalf("received %+v, want the browser's connection", e)
	}
	return c
}

// say sends a message of the runtime to the connected browser and returns its cursor.
func (c *conversation) say(t *testing.T, text string) (cursor string) {
	t.Helper()
	harness.SendChat(t, c.channel, fmt.Sprintf(`{"text":%q}`, text))
	return c.browser.Expect(text).StreamID
}

// Nothing is lost, repeated or reordered if telapi dev is stopped with Ctrl-C and
// started again.
func TestDevRestartKeepsConversations(t *testing.T) {
	t.Parallel()
	d := startDevServer(t)
	c := d.open()
	cursor := c.say(t, "read")
	call := phoneCall{c.channel, t, d.Instance}
	first, second := call.await(wire.Await{}), call.await(wire.Await{})
	expectStatus(t, 202, `"parked"`)(call.postCallback(second, call.botMessage("two")))
	sent := c.browser.Chat("not received yet")
	c.browser.Expect(`"ack"`, sent)
	c.browser.Cut()
	harness.SendChat(t, c.channel, `{"text":"unread one"}`)
	harness.SendChat(t, c.channel, `{"text":"unread two"}`)
	testkit.Must(t, c.channel.Close(t.Context()))

	d.stop(syscall.SIGINT, 0)
	d.start()
	browser := harness.Connect(t, d.Instance, c.browser.Session, c.token, "?streamId="+cursor)
	browser.Expect(`"ready"`, `"resumed":true`)
	browser.Expect("unread one")
	browser.Expect("unread two")
	browser.Expect(`"reconnect"`, `"recovered":true`, `"count":2`)
	browser.Write(harness.Frame("chat", c.browser.Session, sent, "chat", `{"text":"not received yet"}`)) // as if the ack had been lost
	browser.Expect(`"ack"`, sent)

	call.i = d.Instance
	expectStatus(t, 409, `"duplicate":true`)(call.postCallback(second, call.botMessage("two")))
	expectStatus(t, 202, `"accepted"`)(call.postCallback(first, call.botMessage("one")))
	channel := harness.Accept(t, harness.ConnectRuntime(t, d.URL, d.output.Key))
	var received []string
	for len(received) == 0 || received[len(received)-1] != "two" {
		e := harness.Receive(t, channel)
		switch {
		case e.Message != nil:
			received = append(received, string(e.Message.Chat))
		case e.Text != "":
			received = append(received, e.Text)
		}
	}
	testkit.Equal(t, "the runtime received", fmt.Sprint(received), `[{"text":"not received yet"} one two]`)
	testkit.Until(t, "the log reports that the store was restored", func() bool { return d.process.Stderr.Has("restored the embedded key-value store") })
}
