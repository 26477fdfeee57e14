package e2e

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// The callbacks are full of URLs: of a listener, and of a host that is reached
// through a proxy. The listener is that proxy too, so every attempt to fetch a URL
// connects to it. The server is a separate process because net/http reads the
// proxy settings only once per process.
func TestCallbackSendsNoOutboundRequests(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	defer func() { _ = listener.Close() }()
	base := "http://" + listener.Addr().String()
	env := harness.Env{"DATA_DIR": t.TempDir(), "HTTP_PROXY": base, "HTTPS_PROXY": base}
	i, process := harness.Serve(t, env)
	team := harness.RunJSON(t, env, "team", "create", "runtimes")["id"].(string)
	key := harness.RunJSON(t, env, "key", "create", "--team", team, "--scope", "RUN_ALL_CALLS")["key"].(string)
	c := openCall(t, i, harness.ConnectRuntime(t, i.URL, key), "call-1")
	for _, url := range []string{base + "/x", "http://callback.example/x", "https://callback.example/x"} {
		body := fmt.Sprintf(`{"conversation":{"identifier":{"id":"call-1"}},"callbackUrl":%[1]q,"from":{"avatar":%[1]q},
			"messages":{"message":[{"content":{"textMessage":{"textHtml":"<p>Hi<img src='%[1]s'><script src='%[1]s'></script></p>"},"voiceMessage":%[1]q}}]},
			"metadata":{"webhook":%[1]q},"channelData":[{"key":"url","value":%[1]q}],"nluData":%[1]q,"actions":[{"type":"play_audio","url":%[1]q},{"type":"hangup"}]}`, url)
		expectStatus(t, 202, "accepted")(c.postCallback(c.await(wire.Await{}), body, "Referer", url, "Origin", url))
	}
	testkit.Must(t, c.End(t.Context(), "done"))
	for harness.Receive(t, c.Channel).Kind != wire.KindChannelEnded {
	}
	// A process that has ended makes no more connections.
	testkit.Must(t, process.Cmd.Process.Signal(syscall.SIGTERM))
	process.WaitExit(t)
	for _, request := range pendingConnections(t, listener) {
		t.Errorf("outbound connection: %q", request)
	}
}

// pendingConnections accepts all connections made to the listener so far and
// returns the data that was sent on each. Connections are accepted in the order
// in which they were made, so a connection of the function itself marks the end.
func pendingConnections(t *testing.T, listener net.Listener) (data []string) {
	t.Helper()
	last, err := net.Dial("tcp", listener.Addr().String())
	testkit.Must(t, err)
	defer func() { _ = last.Close() }()
	for {
		conn, err := listener.Accept()
		testkit.Must(t, err)
		if conn.RemoteAddr().String() == last.LocalAddr().String() {
			_ = conn.Close()
			return data
		}
		sent, _ := io.ReadAll(conn)
		_ = conn.Close()
		data = append(data, string(sent))
	}
}
