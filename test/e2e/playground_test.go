package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/demo"
	"telapi/test/harness"
	"telapi/test/testkit"
)

var playgroundEnv = harness.Env{"PLAYGROUND_ENABLED": "true"}

func TestPlaygroundIsOptIn(t *testing.T) {
	for _, env := range []harness.Env{{}, {"PLAYGROUND_ENABLED": "true", "FEATURE_API_ACCESS": "false"}} {
		i := harness.Start(t, env)
		for _, path := range []string{"/", "/playground", "/playground/", "/playground/config.json", "/playground/feed", "/docs", "/docs/", "/docs/docs.js"} {
			expectStatus(t, 404, code("NOT_FOUND"))(i.Call(t, "GET", path))
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
	for _, path := range []string{"/playground/nothing.js", "/playground/..%2fweb.go", "/playground/dist/index.html", "/playground//", "/playground/index.html/", "/docs/icon.svg", "/docs/docs_test.go"} {
		resp, body := i.Call(t, "GET", path)
		wantStatus(t, resp, body, 404, code("NOT_FOUND"))
	}
	if _, body := i.Call(t, "GET", "/playground/config.json"); body != `{"endpoints":[],"phrases":[]}` {
		t.Errorf("config.json without a demo is %s, want no endpoints and phrases", body)
	}
}

// openFeed subscribes to the feed of a session or channel: sessionId=… or channelId=…. The returned function returns the
// next event that is a row of the timeline, or nil at the end of the feed.
func openFeed(t *testing.T, i *harness.Instance, key, of string) func() *demo.Event {
	t.Helper()
	next := openWholeFeed(t, i, key, of)
	return func() *demo.Event {
		for {
			if e := next(); e == nil || e.Kind != demo.EventHeartbeat && e.Kind != demo.EventWaiting { // these depend on how long something takes
				return e
			}
		}
	}
}

// openWholeFeed is openFeed with all events.
func openWholeFeed(t *testing.T, i *harness.Instance, key, of string) func() *demo.Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "GET", i.URL+"/playground/feed?"+of, nil)
	testkit.Must(t, err)
	req.Header.Set("X-API-Key", key)
	resp, err := i.Client.Do(req)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != 200 {
		t.Fatalf("GET /playground/feed: %d, want 200", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() *demo.Event {
		if !lines.Scan() {
			return nil
		}
		var e demo.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("decode feed line %s: %v", lines.Text(), err)
		}
		return &e
	}
}

// A page may open a feed again after a runtime has claimed the session for which it waited.
func TestFeedReportsThatNothingWaits(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.Env{"PLAYGROUND_ENABLED": "true"})
	id, token := tenant.Session(t, i)
	harness.Connect(t, i, id, token, "").Expect("ready")
	harness.Accept(t, harness.StartRuntime(t, i))
	next := openWholeFeed(t, i, tenant.Key, "sessionId="+id)
	for e := next(); ; e = next() {
		if e == nil {
			t.Fatal("the feed ended without an event of kind waiting")
		}
		if e.Kind == demo.EventWaiting {
			testkit.Equal(t, "waits for", string(e.Data), `{"forRuntime":false,"workItems":[]}`)
			return
		}
	}
}

func TestFeedShowsWholeSession(t *testing.T) {
	t.Parallel()
	onAllStores(t, func(t *testing.T, env harness.Env) {
		env["PLAYGROUND_ENABLED"] = "true"
		env = harness.WithDataDir(t, env)
		i, tenant := startTenant(t, env)
		id, token := tenant.Session(t, i)
		early := openFeed(t, i, tenant.Key, "sessionId="+id)
		b := harness.Connect(t, i, id, token, "")
		b.Expect("ready")
		b.Chat("hello")
		ch := harness.Accept(t, harness.StartRuntime(t, i))
		harness.Receive(t, ch)
		harness.Receive(t, ch)
		harness.SendChat(t, ch, `{"text":"good day"}`)
		item, err := ch.Await(t.Context(), wire.Await{})
		testkit.Must(t, err)
		late := openFeed(t, i, tenant.Key, "sessionId="+id)
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
		resp, body := i.Post(t, harness.Path(item), `{"conversation":{"identifier":{"id":"`+id+`"}},"channelData":[{"key":"pin","value":"pin-swordfish","sensitiveData":true}],
			"messages":{"message":[{"content":{"textMessage":{"textPlain":"hm"},"event":{"custom":{"name":"hangup"}}}}]}}`, "token", item.Token)
		wantStatus(t, resp, body, 202, "accepted")
		expect("the early feed", early, want[3:6]...)
		testkit.Must(t, ch.End(t.Context(), "done"))
		for feed, next := range map[string]func() *demo.Event{"the early feed": early, "the late feed": late} {
			if feed == "the late feed" {
				expect(feed, next, want[3:6]...)
			}
			expect(feed, next, want[6])
			if e := next(); e != nil {
				t.Errorf("%s: event after the end: %+v", feed, e)
			}
		}
		expect("a feed after the end", openFeed(t, i, tenant.Key, "sessionId="+id), want...)
	})
}

// A channel that a runtime has opened, such as a phone call, has a feed, too.
func TestFeedShowsChannelWithoutSession(t *testing.T) {
	t.Parallel()
	onAllStores(t, func(t *testing.T, env harness.Env) {
		env["PLAYGROUND_ENABLED"] = "true"
		i, tenant := startTenant(t, harness.WithDataDir(t, env))
		ch, err := harness.ConnectRuntime(t, i.URL, tenant.Key).Open(t.Context(), "phone-1", wire.Open{Endpoint: tenant.Endpoint.ID, Mode: "audio"})
		testkit.Must(t, err)
		next := openFeed(t, i, tenant.Key, "channelId=phone-1")
		harness.SendChat(t, ch, `{"text":"good day"}`)
		if e := next(); e == nil || e.Lane != demo.LaneRuntime || e.Title != "chat: good day" || e.SessionID != "phone-1" {
			t.Errorf("event %+v, want the message", e)
		}
		testkit.Must(t, ch.End(t.Context(), "hangup"))
		if e := next(); e == nil || e.Title != "ended: hangup" {
			t.Errorf("event %+v, want the end", e)
		}
		if e := next(); e != nil {
			t.Errorf("event %+v after the end", e)
		}
		foreign := harness.NewTenant(t, i, "foreign")
		for path, key := range map[string]string{"phone-1": foreign.Key, "phone-2": tenant.Key} {
			expectStatus(t, 404, "Channel not found")(i.Call(t, "GET", "/playground/feed?channelId="+path, "X-API-Key", key))
		}
		expectStatus(t, 400, "/query/channelId")(i.Call(t, "GET", "/playground/feed?channelId=a%20b", "X-API-Key", tenant.Key))
	})
}

func TestFeedEndsWhenKeyIsRevoked(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.WithDataDir(t, harness.Env{"PLAYGROUND_ENABLED": "true"}))
	_, err := harness.ConnectRuntime(t, i.URL, tenant.Key).Open(t.Context(), "phone-1", wire.Open{Endpoint: tenant.Endpoint.ID})
	testkit.Must(t, err)
	id, key := harness.NewKey(t, i, tenant.Team.ID, auth.ReadTeamApps)
	next := openFeed(t, i, key, "channelId=phone-1")
	testkit.Must(t, i.App.Admin().Keys.Revoke(t.Context(), id))
	ended := make(chan *demo.Event, 1)
	go func() { ended <- next() }()
	select {
	case e := <-ended:
		if e != nil {
			t.Errorf("event %+v after the key was revoked", e)
		}
	case <-time.After(testkit.Timeout / 2): // the request itself ends later
		t.Error("the feed goes on")
	}
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
		{"DELETE", "/playground/sessions/" + id + "/items/1", auth.CreateCallToken},
	} {
		for key, want := range map[string]int{"": 401, foreign.Key: 404} {
			expectStatus(t, want, `"code"`)(i.Call(t, route.method, route.path, "X-API-Key", key))
		}
		for _, scope := range auth.Scopes {
			if _, key := harness.NewKey(t, i, tenant.Team.ID, scope); scope != route.scope {
				expectStatus(t, 403, string(route.scope))(i.Call(t, route.method, route.path, "X-API-Key", key))
			}
		}
	}
	expectStatus(t, 401, code("UNAUTHORIZED"))(i.Call(t, "GET", "/playground/access"))
	for _, scope := range auth.Scopes {
		_, key := harness.NewKey(t, i, tenant.Team.ID, scope)
		switch scope {
		case auth.ManageTeam, auth.ManagePlatform:
			expectStatus(t, 200, `{"teamId":"`+tenant.Team.ID+`","scopes":["`+string(scope)+`"]}`)(i.Call(t, "GET", "/playground/access", "X-API-Key", key))
		default:
			expectStatus(t, 403, string(auth.ManageTeam))(i.Call(t, "GET", "/playground/access", "X-API-Key", key))
		}
	}
	for _, of := range []string{"", "?sessionId=" + id + "&channelId=" + id} {
		expectStatus(t, 400, "either sessionId or channelId")(i.Call(t, "GET", "/playground/feed"+of, "X-API-Key", tenant.Key))
	}
	expectStatus(t, 404, "no open socket")(i.Call(t, "POST", "/playground/sessions/"+id+"/drop", "X-API-Key", tenant.Key))
}
