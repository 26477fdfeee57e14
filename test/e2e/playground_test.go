package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/internal/auth"
	"telapi/internal/calls"
	"telapi/internal/demo"
	"telapi/test/harness"
	"telapi/test/testkit"
)

var playgroundEnv = harness.Env{"PLAYGROUND_ENABLED": "true"}

func TestPlaygroundIsOptIn(t *testing.T) {
	for _, env := range []harness.Env{{}, {"PLAYGROUND_ENABLED": "true", "FEATURE_API_ACCESS": "false"}} {
		i := harness.Start(t, env)
		for _, path := range []string{"/", "/playground", "/playground/", "/playground/config.json", "/playground/feed", "/docs", "/docs/", "/docs/docs.js"} {
			resp, body := i.Call(t, "GET", path)
			wantStatus(t, resp, body, 404, code("NOT_FOUND"))
		}
	}
}

func TestPagesLoadOnlyOwnResources(t *testing.T) {
	i := harness.Start(t, playgroundEnv)
	i.Client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for path, page := range map[string]string{"/": "/playground/", "/playground": "/playground/", "/docs": "/docs/"} {
		if resp, _ := i.Call(t, "GET", path); resp.StatusCode != 302 || resp.Header.Get("Location") != page {
			t.Errorf("%s: %d to %q, want 302 to %s", path, resp.StatusCode, resp.Header.Get("Location"), page)
		}
	}
	for _, path := range []string{"/playground/", "/playground/index.html", "/docs/"} {
		page, body := i.Call(t, "GET", path)
		if page.StatusCode != 200 || !strings.Contains(body, "<title>") || page.Header.Get("Content-Type") != "text/html; charset=utf-8" {
			t.Errorf("%s: %d %s %s, want 200 and an HTML page", path, page.StatusCode, page.Header.Get("Content-Type"), body)
		}
		if policy := page.Header.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") {
			t.Errorf("%s: Content-Security-Policy is %q, want only own scripts and styles", path, policy)
		}
		if again, _ := i.Call(t, "GET", path, "If-None-Match", page.Header.Get("ETag")); again.StatusCode != 304 {
			t.Errorf("%s with its ETag: %d, want 304", path, again.StatusCode)
		}
	}
	for _, path := range []string{"/playground/nothing.js", "/playground/..%2fweb.go", "/playground/dist/index.html", "/playground//", "/playground/index.html/", "/docs/icon.svg", "/docs/swagger-ui.css.gz"} {
		resp, body := i.Call(t, "GET", path)
		wantStatus(t, resp, body, 404, code("NOT_FOUND"))
	}
	if _, body := i.Call(t, "GET", "/playground/config.json"); body != `{"endpoints":[],"phrases":[]}` {
		t.Errorf("config.json without a demo is %s, want no endpoints and phrases", body)
	}
}

// openFeed subscribes to the feed of a session. The returned function returns the
// next event other than a heartbeat, or nil at the end of the feed.
func openFeed(t *testing.T, i *harness.Instance, key, session string) func() *demo.Event {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", i.URL+"/playground/feed?sessionId="+session, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", key)
	resp, err := i.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != 200 {
		t.Fatalf("GET /playground/feed: %d, want 200", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() *demo.Event {
		for lines.Scan() {
			var e demo.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatalf("decode feed line %s: %v", lines.Text(), err)
			}
			if e.Kind != demo.EventHeartbeat {
				return &e
			}
		}
		return nil
	}
}

func TestFeedShowsWholeSession(t *testing.T) {
	t.Parallel()
	onAllStores(t, func(t *testing.T, env harness.Env) {
		env["PLAYGROUND_ENABLED"] = "true"
		env = harness.WithDataDir(t, env)
		i := harness.Start(t, env)
		tenant := harness.NewTenant(t, i, "tenant")
		id, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
		early := openFeed(t, i, tenant.Key, id)
		b := harness.Connect(t, i, id, token, "")
		b.Expect("ready")
		b.Chat("hello")
		ch := harness.Accept(t, harness.StartRuntime(t, env))
		harness.Receive(t, ch)
		harness.Receive(t, ch)
		harness.SendChat(t, ch, `{"text":"good day"}`)
		item, err := ch.Await(t.Context(), calls.AwaitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		late := openFeed(t, i, tenant.Key, id)
		want := []demo.Event{
			{Lane: "service", To: "runtime", Kind: "session", Title: "browser connected"},
			{Lane: "browser", To: "runtime", Kind: "frame", Title: "chat: hello"},
			{Lane: "runtime", To: "browser", Kind: "frame", Title: "chat: good day"},
			{Lane: "service", To: "runtime", Kind: "entry", Title: "channel_data"},
			{Lane: "service", To: "runtime", Kind: "entry", Title: "bot message: hm"},
			{Lane: "service", To: "runtime", Kind: "denied", Title: "hangup denied: source_not_allowed"},
			{Lane: "service", To: "runtime", Kind: "session", Title: "ended: done"},
		}
		expect := func(feed string, next func() *demo.Event, want ...demo.Event) {
			t.Helper()
			var seen []*demo.Event
			for _, w := range want {
				if seen = append(seen, next()); seen[len(seen)-1] == nil {
					t.Fatalf("%s ended before %+v", feed, w)
				}
			}
			// The sources of a live feed are not synchronized with each other.
			slices.SortStableFunc(seen, func(a, b *demo.Event) int { return cmp.Compare(a.At, b.At) })
			for n, w := range want {
				got := seen[n]
				if got.Lane != w.Lane || got.To != w.To || got.Kind != w.Kind || got.Title != w.Title || got.SessionID != id || got.At == 0 {
					t.Errorf("%s: event %+v, want %+v", feed, *got, w)
				}
				if data := string(got.Data); data == "" || strings.Contains(data, item.Token) || strings.Contains(data, "pin-swordfish") {
					t.Errorf("%s: data is %s, want it without secrets", feed, data)
				}
			}
		}
		expect("the early feed", early, want[:3]...)
		expect("the late feed", late, want[:3]...)
		resp, body := i.Post(t, item.Path, `{"conversation":{"identifier":{"id":"`+id+`"}},"channelData":[{"key":"pin","value":"pin-swordfish","sensitiveData":true}],
			"messages":{"message":[{"content":{"textMessage":{"textPlain":"hm"},"event":{"custom":{"name":"hangup"}}}}]}}`, "token", item.Token)
		wantStatus(t, resp, body, 202, "accepted")
		expect("the early feed", early, want[3:6]...)
		if err := ch.End(t.Context(), "done"); err != nil {
			t.Fatal(err)
		}
		for feed, next := range map[string]func() *demo.Event{"the early feed": early, "the late feed": late} {
			if feed == "the late feed" {
				expect(feed, next, want[3:6]...)
			}
			expect(feed, next, want[6])
			if e := next(); e != nil {
				t.Errorf("%s: event after the end: %+v", feed, e)
			}
		}
		expect("a feed after the end", openFeed(t, i, tenant.Key, id), want...)
	})
}

func TestPlaygroundRoutesRequireOwnTeam(t *testing.T) {
	i := harness.Start(t, playgroundEnv)
	tenant, foreign := harness.NewTenant(t, i, "tenant"), harness.NewTenant(t, i, "foreign")
	id := issue(t, i, tenant, `"mode":"chat"`).SessionID
	for _, route := range []struct {
		method, path string
		scope        auth.Scope
	}{
		{"GET", "/playground/feed?sessionId=" + id, auth.ReadTeamApps},
		{"POST", "/playground/sessions/" + id + "/drop", auth.CreateCallToken},
		{"POST", "/playground/sessions/" + id + "/credential?kind=bot", auth.CreateCallToken},
	} {
		for key, want := range map[string]int{"": 401, foreign.Key: 404} {
			resp, body := i.Call(t, route.method, route.path, "X-API-Key", key)
			wantStatus(t, resp, body, want, `"code"`)
		}
		for _, scope := range auth.Scopes {
			if _, key := harness.NewKey(t, i, tenant.Team.ID, scope); scope != route.scope {
				resp, body := i.Call(t, route.method, route.path, "X-API-Key", key)
				wantStatus(t, resp, body, 403, string(route.scope))
			}
		}
	}
	resp, body := i.Call(t, "GET", "/playground/feed", "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 404, code("NOT_FOUND"))
	resp, body = i.Call(t, "POST", "/playground/sessions/"+id+"/drop", "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 404, "no open socket")
}

func TestDroppedSocketResumes(t *testing.T) {
	i := harness.Start(t, playgroundEnv)
	tenant := harness.NewTenant(t, i, "tenant")
	id, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	b := harness.Connect(t, i, id, token, "")
	start := b.Expect("ready").ReadyStreamID()
	resp, body := i.Call(t, "POST", "/playground/sessions/"+id+"/drop", "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 204, "")
	if _, err := b.Read(); err == nil || strings.Contains(err.Error(), "close 1000") || strings.Contains(err.Error(), "close 4") {
		t.Errorf("socket ended with %v, want no close frame", err)
	}
	again := harness.Connect(t, i, id, token, "?streamId="+start)
	again.Expect("ready", `"resumed":true`)
	again.Expect(`"recovered":true`)
}

func TestPlaygroundIssuesCredentialForOneCallback(t *testing.T) {
	i := harness.Start(t, playgroundEnv)
	tenant := harness.NewTenant(t, i, "tenant")
	id, token := harness.Issue(t, i, tenant.Key, map[string]any{"endpointId": tenant.Endpoint.ID, "mode": "chat"})
	path := "/playground/sessions/" + id + "/credential?kind="
	resp, body := i.Call(t, "POST", path+"llm", "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 404, "has not connected")
	harness.Connect(t, i, id, token, "").Expect("ready")
	resp, body = i.Call(t, "POST", path+"mail", "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 400, "/query/kind")

	resp, body = i.Call(t, "POST", path+"llm", "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 201, `"token":"cbt_`)
	var credential struct{ Token, Path string }
	if err := json.Unmarshal([]byte(body), &credential); err != nil {
		t.Fatal(err)
	}
	resp, body = i.Post(t, credential.Path, `{"content":"Hello"}`, "token", credential.Token)
	wantStatus(t, resp, body, 202, `"status":"accepted"`)
	resp, body = i.Post(t, credential.Path, `{"content":"Other"}`, "token", credential.Token)
	wantStatus(t, resp, body, 409, code("CALLBACK_CONSUMED"))
	resp, body = i.Call(t, "DELETE", "/api/v1/sessions/"+id, "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 204, "")
	resp, body = i.Call(t, "POST", path+"llm", "X-API-Key", tenant.Key)
	wantStatus(t, resp, body, 410, code("SESSION_ENDED"))
}

func TestFeedDoesNotDelayShutdown(t *testing.T) {
	i := harness.Start(t, harness.Merge(playgroundEnv, harness.Env{"SHUTDOWN_TIMEOUT": "10m"}))
	tenant := harness.NewTenant(t, i, "tenant")
	id := issue(t, i, tenant, `"mode":"chat"`).SessionID
	next := openFeed(t, i, tenant.Key, id)
	done := make(chan error, 1)
	go func() { done <- i.Stop() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testkit.Timeout):
		t.Error("shutdown waits for an open feed")
	}
	if e := next(); e != nil {
		t.Errorf("feed event after shutdown: %+v", e)
	}
}
