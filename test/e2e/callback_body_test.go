package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/test/harness"
)

// A body over 16 KiB is read only if its token is known. The token decides the
// answer, even if the body is invalid.
func TestLargeCallbackIsReadOnlyWithKnownToken(t *testing.T) {
	i, r := startWithRuntime(t, harness.Env{})
	c := openCall(t, i, r, "call-1")
	large := c.botMessage(strings.Repeat("a", callback.MaxUncheckedBody))
	invalid := strings.Replace(large, "call-1", "call-2", 1)
	usable, consumed, cancelled := c.await(calls.AwaitOptions{}), c.await(calls.AwaitOptions{}), c.await(calls.AwaitOptions{})
	if err := c.Cancel(t.Context(), cancelled.ID); err != nil {
		t.Fatal(err)
	}
	resp, body := c.postCallback(consumed, large)
	wantStatus(t, resp, body, 202, `"parked"`)
	post := func(name string, item calls.WorkItem, text string, status int, want string) {
		t.Helper()
		resp, body := c.postCallback(item, text)
		if resp.StatusCode != status || !strings.Contains(body, want) {
			t.Errorf("%s: got %d %.300s, want %d with %s", name, resp.StatusCode, body, status, want)
		}
	}
	unknown := usable
	unknown.Token = "guessed"
	post("unknown token", unknown, invalid, 401, code("CALLBACK_TOKEN_INVALID"))
	post("cancelled", cancelled, invalid, 409, `"state":"cancelled"`)
	post("duplicate", consumed, large, 409, `"duplicate":true`)
	post("consumed", consumed, large+" ", 409, `"duplicate":true`)
	post("consumed, other body", consumed, strings.Replace(large, "aaa", "bbb", 1), 409, `"duplicate":false`)
	post("consumed, invalid body", consumed, invalid, 409, `"duplicate":false`)
	post("usable, invalid body", usable, invalid, 400, code("VALIDATION_ERROR"))
	post("usable", usable, large, 202, `"accepted"`)
	if err := c.End(t.Context(), "done"); err != nil {
		t.Fatal(err)
	}
	post("ended", usable, invalid, 410, code("CONVERSATION_ENDED"))
}

// The client sends a part of its body and then no more. It gets an answer that
// depends on its token, like other malformed bodies.
func TestIncompleteCallbackIsMalformed(t *testing.T) {
	i, r := startWithRuntime(t, harness.Env{})
	c := openCall(t, i, r, "call-1")
	item := c.await(calls.AwaitOptions{})
	for _, length := range []int{100, 2 * callback.MaxUncheckedBody} {
		for token, want := range map[string]string{item.Token: "400 " + code("MALFORMED_JSON"), "guessed": "401 " + code("CALLBACK_TOKEN_INVALID")} {
			if got := postIncomplete(t, i, item.Path, token, length); !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) {
				t.Errorf("%d bytes announced: answered %s, want %s", length, got, want)
			}
		}
	}
	if i.Log.Has("context canceled") {
		t.Error("the log has an incomplete body as a cancelled request")
	}
	resp, body := c.postCallback(item, c.botMessage("Hello"))
	wantStatus(t, resp, body, 202, `"accepted"`)
}

// postIncomplete announces a body, sends the first byte of it and closes the sending
// side of the connection. It returns status and body of the response.
func postIncomplete(t *testing.T, i *harness.Instance, path, token string, length int) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(i.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\ntoken: %s\r\nContent-Length: %d\r\n\r\n{", path, token, length)
	if err == nil {
		err = conn.(*net.TCPConn).CloseWrite()
	}
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(body))
}
