package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// openStream is an answer that is being sent.
type openStream struct {
	t        *testing.T
	body     *io.PipeWriter
	response chan streamResponse
}

type streamResponse struct {
	status int
	body   string
	err    error
}

// stream starts to send an answer. write adds to it.
func (c phoneCall) stream(item wire.Awaited, contentType string) *openStream {
	r, w := io.Pipe()
	s := &openStream{c.t, w, make(chan streamResponse, 1)}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.i.URL+harness.Path(item), r)
	testkit.Must(c.t, err)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Token", item.Token)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		defer func() { _ = r.CloseWithError(io.ErrClosedPipe) }() // a write after the response returns
		if err != nil {
			s.response <- streamResponse{err: err}
			return
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		s.response <- streamResponse{resp.StatusCode, string(body), err}
	}()
	return s
}

func (s *openStream) write(text string) {
	s.t.Helper()
	_, err := io.WriteString(s.body, text)
	testkit.Must(s.t, err)
}

// want waits for the response, and closes the body afterwards.
func (s *openStream) want(status int, part string) {
	s.t.Helper()
	got := <-s.response
	_ = s.body.Close()
	if got.err != nil || got.status != status || !strings.Contains(got.body, part) {
		s.t.Errorf("response %d %s, %v, want %d with %q", got.status, got.body, got.err, status, part)
	}
}

// delta returns a line of NDJSON.
func delta(text string) string { return fmt.Sprintf("{\"delta\":%q}\n", text) }

const doneLine = "{\"done\":true}\n"

// receive returns the next n entries in short: kind, number of the part, text.
func (c phoneCall) receive(n int) string {
	c.t.Helper()
	var list []string
	for range n {
		e := harness.Receive(c.t, c.Channel)
		short := string(e.Kind)
		if e.Part > 0 {
			short += fmt.Sprint(" ", e.Part)
		}
		if e.Content != nil {
			e.Text = *e.Content
		}
		if e.Parts > 0 {
			short += fmt.Sprint(" of ", e.Parts)
		}
		list = append(list, strings.TrimSpace(short+" "+e.Event+e.Text))
	}
	return strings.Join(list, "|")
}

func TestStreamedAnswerIsDeliveredInParts(t *testing.T) {
	i, r := startWithRuntime(t, nil)
	c := openCall(t, i, r, "call-1")
	chunk := func(content string) string {
		return fmt.Sprintf("data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q},\"finish_reason\":null}]}\n\n", content)
	}
	for name, row := range map[string]struct {
		kind              wire.WorkItemKind
		contentType, path string
		body              string
		entries           int
		want              string
		receipt           string
	}{
		"NDJSON":                       {wire.LLMItem, callback.NDJSON, "", delta("One. T") + delta("wo.") + doneLine, 3, "llm_part 1 One.|llm_part 2 Two.|llm_result of 2 One. Two.", `"parts":2`},
		"last line without line break": {wire.LLMItem, callback.NDJSON, "", delta("One.") + `{"done":true}`, 2, "llm_part 1 One.|llm_result of 1 One.", `"messages":1`},
		"bot": {wire.BotItem, callback.NDJSON, "", delta("**One.** Two") + `{"done":true,"metadata":{"a":1},"actions":{"type":"hangup"}}`, 5,
			"bot_message 1 One.|bot_message 2 Two|metadata|bot_event of 2 empty|command", `"decision":"allowed"`},
		"commands on the last line": {wire.LLMItem, callback.NDJSON, "", delta("Bye.") + `{"done":true,"content":"Bye.","commands":[{"type":"hangup"},{"type":"transfer","target":"tel:+1900"}]}`, 4,
			"llm_part 1 Bye.|llm_result of 1 Bye.|command|command_denied", `"reason":"target_not_allowed"`},
		"no text":    {wire.LLMItem, callback.NDJSON, "", doneLine, 1, "llm_result", `"accepted"`},
		"each delta": {wire.LLMItem, callback.NDJSON, "?split=none", delta("a") + delta(" b.") + doneLine, 3, "llm_part 1 a|llm_part 2  b.|llm_result of 2 a b.", `"parts":2`},
		"a chat completion": {wire.LLMItem, callback.EventStream, "", ": ping\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\r\n\r\n" + chunk("Hi. How") + chunk(" are you?") +
			"data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n", 3, "llm_part 1 Hi.|llm_part 2 How are you?|llm_result of 2 Hi. How are you?", `"parts":2`},
		"error of a provider":       {wire.BotItem, callback.NDJSON, "", delta("One. Two") + `{"error":{"code":"X","message":"y"}}`, 3, "bot_message 1 One.|bot_message 2 Two|provider_error", `"parts":2`},
		"error within the stream":   {wire.LLMItem, callback.EventStream, "", chunk("One.") + "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":null}}\n\n", 2, "llm_part 1 One.|provider_error", `"parts":1`},
		"error instead of a stream": {wire.LLMItem, callback.EventStream, "", "{\n \"error\": {\"message\": \"bad key\", \"code\": \"invalid_api_key\"}\n}\n", 1, "provider_error", `"accepted"`},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			item := c.await(wire.Await{Kind: row.kind})
			expectStatus(t, 202, row.receipt)(i.Post(t, harness.Path(item)+row.path, row.body, "Content-Type", row.contentType, "token", item.Token))
			testkit.Equal(t, "entries", c.receive(row.entries), row.want)
			expectStatus(t, 409, `"duplicate":true`)(i.Post(t, harness.Path(item)+row.path, row.body, "Content-Type", row.contentType, "token", item.Token))
		})
	}
}

func TestSentenceIsDeliveredWhileTheAnswerIsWritten(t *testing.T) {
	onAllStores(t, func(t *testing.T, env harness.Env) {
		i, r := startWithRuntime(t, env)
		c := openCall(t, i, r, "call-1")
		first, second := c.await(wire.Await{Kind: wire.LLMItem}), c.await(wire.Await{Kind: wire.BotItem})
		later := c.stream(second, callback.NDJSON)
		later.write(delta("Later. Much"))
		early := c.stream(first, callback.NDJSON)
		early.write(delta("One. Two"))
		testkit.Equal(t, "first entry", c.receive(1), "llm_part 1 One.")
		expectStatus(t, 409, `"state":"streaming"`)(c.postCallback(first, `{"content":"other"}`))
		later.write(delta(" later.") + doneLine)
		later.want(202, `"parked"`)
		early.write(doneLine)
		early.want(202, `"parts":2`)
		if got, want := c.receive(5), "llm_part 2 Two|llm_result of 2 One. Two|bot_message 1 Later.|bot_message 2 Much later.|bot_event of 2 empty"; got != want {
			t.Errorf("entries %s, want %s", got, want)
		}
	})
}

func TestCancelEndsTheProvidersRequest(t *testing.T) {
	onAllStores(t, func(t *testing.T, env harness.Env) {
		i, r := startWithRuntime(t, env)
		c := openCall(t, i, r, "call-1")
		silent, speaking, last := c.await(wire.Await{Kind: wire.LLMItem}), c.await(wire.Await{Kind: wire.BotItem}), c.await(wire.Await{Kind: wire.LLMItem})
		a, b, e := c.stream(silent, callback.NDJSON), c.stream(speaking, callback.NDJSON), c.stream(last, callback.EventStream)
		a.write("\n")
		b.write(delta("One. Two"))
		e.write("\n")
		testkit.Must(t, c.Cancel(t.Context(), silent.WorkItemID))
		a.want(409, `"state":"cancelled"`)
		testkit.Equal(t, "entry", c.receive(1), "bot_message 1 One.")
		testkit.Must(t, c.Cancel(t.Context(), speaking.WorkItemID))
		b.want(409, `"state":"cancelled"`)
		testkit.Must(t, c.End(t.Context(), "done"))
		e.want(410, `CONVERSATION_ENDED`)
	})
}

// The line of docs/providers.md.
func TestModelIsPipedIntoCallback(t *testing.T) {
	i, r := startWithRuntime(t, nil)
	c := openCall(t, i, r, "call-1")
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, text := range []string{"One", ". Two", " is", " here."} {
			_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", text)
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(model.Close)
	item := c.await(wire.Await{Kind: wire.LLMItem})
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `curl -sN "$MODEL_URL/v1/chat/completions" -H 'Content-Type: application/json' -d '{"stream":true}' |
		curl -sS -X POST -T - -H 'Content-Type: text/event-stream' -H "token: $TOKEN" "$CALLBACK_URL"`)
	cmd.Env = append(os.Environ(), "MODEL_URL="+model.URL, "TOKEN="+item.Token, "CALLBACK_URL="+i.URL+harness.Path(item))
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"parts":2`) {
		t.Errorf("curl printed %s, %v", out, err)
	}
	if got, want := c.receive(3), "llm_part 1 One.|llm_part 2 Two is here.|llm_result of 2 One. Two is here."; got != want {
		t.Errorf("entries %s, want %s", got, want)
	}
}

func TestInvalidStreamIsRejected(t *testing.T) {
	i, r := startWithRuntime(t, nil)
	c := openCall(t, i, r, "call-1")
	for name, row := range map[string]struct {
		kind                    wire.WorkItemKind
		contentType, path, body string
		status                  int
		want                    string
	}{
		"tool":                  {wire.ToolItem, callback.NDJSON, "", doneLine, 415, "UNSUPPORTED_MEDIA_TYPE"},
		"no JSON":               {wire.LLMItem, callback.NDJSON, "", delta("a") + "{delta}\n", 400, "Line 2 of the stream"},
		"no delta":              {wire.LLMItem, callback.NDJSON, "", "{}\n", 400, `"/delta"`},
		"wrong type":            {wire.LLMItem, callback.NDJSON, "", "{\"delta\":1}\n", 400, `"/delta"`},
		"no end":                {wire.LLMItem, callback.NDJSON, "", delta("a"), 400, "incomplete"},
		"no end of events":      {wire.LLMItem, callback.EventStream, "", "data: {\"choices\":[]}\n\n", 400, "[DONE]"},
		"other text at the end": {wire.LLMItem, callback.NDJSON, "", delta("a") + `{"done":true,"content":"b"}`, 400, `"/content"`},
		"other bot text":        {wire.BotItem, callback.NDJSON, "", delta("a") + `{"done":true,"messages":{"message":[{"content":{"voiceMessage":"b"}}]}}`, 400, `"/messages/message"`},
		"other channel":         {wire.BotItem, callback.NDJSON, "", `{"done":true,"conversation":{"identifier":{"id":"x"}}}`, 400, "/conversation/identifier/id"},
		"too many parts":        {wire.LLMItem, callback.NDJSON, "", strings.Repeat(delta("Yes. "), 1002) + doneLine, 413, "1000"},
		"too many bytes":        {wire.LLMItem, callback.NDJSON, "", strings.Repeat(delta(strings.Repeat("a", 1000)), 1100) + doneLine, 413, "1048576"},
		"unknown split":         {wire.LLMItem, callback.NDJSON, "?split=word", doneLine, 400, "/query/split"},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			item := c.await(wire.Await{Kind: row.kind})
			expectStatus(t, row.status, row.want)(i.Post(t, harness.Path(item)+row.path, row.body, "Content-Type", row.contentType, "token", item.Token))
			testkit.Must(t, c.Cancel(t.Context(), item.WorkItemID))
			resp, body := i.Post(t, harness.Path(item)+row.path, row.body, "Content-Type", row.contentType, "token", "made-up")
			if want := map[bool]int{true: row.status, false: 401}[row.status == 415 || name == "too many bytes"]; resp.StatusCode != want {
				t.Errorf("with a made-up token: %d %s, want %d", resp.StatusCode, body, want)
			}
		})
	}
	c.t = t
	channelToken := c.await(wire.Await{Kind: wire.BotItem, Scope: wire.ScopeChannel})
	expectStatus(t, 400, "work item")(i.Post(t, harness.Path(channelToken), doneLine, "Content-Type", callback.NDJSON, "token", channelToken.Token))
}

// A provider with a wrong token is rejected before it sends anything, and while it sends: it
// gets the whole rejection, and the connection is not reset.
func TestStreamWithWrongTokenIsRejectedEarly(t *testing.T) {
	t.Parallel()
	i := harness.Start(t, harness.Env{})
	body := strings.Repeat(delta(strings.Repeat("a", 1000)), 100)
	for name, c := range map[string]struct {
		rest  string // of the request
		times int
	}{
		"sending": {fmt.Sprintf("\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body), 20},
		"silent":  {"\r\n", 1},
		"waiting": {"Expect: 100-continue\r\n\r\n", 1},
	} {
		for range c.times {
			conn, err := net.Dial("tcp", strings.TrimPrefix(i.URL, "http://"))
			testkit.Must(t, err, conn.SetDeadline(time.Now().Add(20*time.Second))) // shorter than the silence that a stream may have
			_, _ = fmt.Fprintf(conn, "POST /api/v1/webhooks/llm/c/w HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nToken: made-up\r\nTransfer-Encoding: chunked\r\n%s", callback.NDJSON, c.rest)
			if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 401") {
				t.Fatalf("%s: read %.100q, %v; want status 401", name, answer, err)
			}
			testkit.Must(t, conn.Close())
		}
	}
}

func TestShutdownEndsOpenStreams(t *testing.T) {
	env, _ := harness.RealStores(t)
	stopping := harness.Start(t, env)
	other := harness.Start(t, env)
	c := openCall(t, other, harness.StartRuntime(t, other), "call-1")
	item := c.await(wire.Await{Kind: wire.LLMItem})
	c.i = stopping
	s := c.stream(item, callback.NDJSON)
	s.write(delta("One. Two"))
	testkit.Equal(t, "entry", c.receive(1), "llm_part 1 One.")
	testkit.Must(t, stopping.Stop())
	s.want(503, "again")
	c.i = other
	s = c.stream(item, callback.NDJSON)
	for _, b := range []byte(delta("One. Two") + doneLine) { // one byte at a time
		s.write(string(b))
	}
	s.want(202, `"parts":2`)
	if got, want := c.receive(2), "llm_part 2 Two|llm_result of 2 One. Two"; got != want {
		t.Errorf("entries %s, want %s", got, want)
	}
}

func TestStreamEndsAtTheDeadline(t *testing.T) {
	i, r := startWithRuntime(t, nil)
	c := openCall(t, i, r, "call-1")
	item := c.await(wire.Await{Kind: wire.LLMItem, TTLMs: new(int64(500))})
	s := c.stream(item, callback.NDJSON)
	s.write(delta("One. Two"))
	s.want(401, "CALLBACK_TOKEN_INVALID")
	got := c.receive(1)
	if got == "llm_part 1 One." { // the deadline has not passed before it arrived
		got = c.receive(1)
	}
	testkit.Equal(t, "last entry", got, "timeout")
}
