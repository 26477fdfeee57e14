package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/ratelimit"
	"telapi/internal/team"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// A fleet of runtimes can reconnect at any time. Wrong keys are limited.
func TestRuntimeHandshakesAreCountedLikeThoseOfBrowsers(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.Env{})
	key := runtimeKey(t, i, tenant.Team.ID)
	quota := int64(1)
	if _, err := i.App.Admin().Teams.Update(t.Context(), tenant.Team.ID, func(t *team.Team) error { t.DailyQuota = &quota; return nil }); err != nil {
		t.Fatal(err)
	}
	setLimit(t, i, ratelimit.API, 1, time.Hour)
	setLimit(t, i, ratelimit.Auth, 10, time.Hour)
	testkit.Until(t, "wrong keys are rejected", func() bool {
		_, resp, _ := dialRuntime(t, i, "X-API-Key: tk_x_y")
		return resp.StatusCode == http.StatusTooManyRequests
	})
	if _, resp, _ := dialRuntime(t, i); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("handshake without a key: %d, want 429", resp.StatusCode)
	}
	testkit.Until(t, "requests are rejected", func() bool {
		resp, _ := i.Call(t, "GET", capabilities, "X-API-Key", key)
		return resp.StatusCode == http.StatusTooManyRequests
	})
	for range 5 {
		greetedRuntime(t, i, key, `"name":"x"`)
	}
}

// A runtime can commit what it received on an earlier connection before it is pushed again.
func TestCommitOfEntriesFromEarlierConnection(t *testing.T) {
	t.Parallel()
	i, tenant := startTenant(t, harness.Env{})
	key := runtimeKey(t, i, tenant.Team.ID)
	channel := `"channel":"c"`
	first := greetedRuntime(t, i, key, `"name":"x"`)
	claimed := first.must("open", channel+fmt.Sprintf(`,"endpoint":%q`, tenant.Endpoint.ID))
	const entries = 200
	var received string
	for n := range entries {
		first.must("await", channel+fmt.Sprintf(`,"workItemId":"w%d","ttlMs":1`, n))
	}
	for range entries {
		_, received = first.entry()
	}
	reconnect := func() *runtimeSocket {
		r := connectRuntime(t, i, key)
		r.send("hello", fmt.Sprintf(`"name":"x","resume":[{"channel":"c","claim":%q,"received":%q}]`, claimed["claim"], received))
		return r
	}
	reject := func(r *runtimeSocket, positions ...string) {
		t.Helper()
		for _, position := range positions {
			testkit.Equal(t, fmt.Sprintf("commit of %s", position), r.rejected("commit", channel+fmt.Sprintf(`,"position":%q`, position)), "VALIDATION_ERROR")
		}
		for _, m := range r.kept {
			if m["event"] == "lost" {
				t.Errorf("an invalid commit is reported as %v", m)
			}
		}
	}
	reject(first, "1-1", fmt.Sprintf("%d-1", entries))
	second := reconnect()
	reject(second, "150-1")
	commit := second.send("commit", channel+fmt.Sprintf(`,"position":%q`, received))
	second.ok(commit)
	beyond := fmt.Sprintf("%d-%s", entries+1, strings.SplitN(received, "-", 2)[1])
	reject(second, beyond, "999-1")
	second.must("end", channel)
	e, last := second.entry()
	for e["kind"] != "channel_ended" {
		e, last = second.entry()
	}

	received = last
	third := reconnect()
	commit = third.send("commit", channel+fmt.Sprintf(`,"position":%q`, last))
	third.ok(commit)
	testkit.Equal(t, "release after the last commit", third.rejected("release", channel), "NOT_FOUND")
}

// During a rotation of JWT_SECRET, instances have other secrets. A runtime that repeats a
// request on another instance gets the same claim and the same token.
func TestRuntimeRequestsSurviveSecretRotation(t *testing.T) {
	t.Parallel()
	const oldSecret, newSecret = harness.Secret, "the next secret, which has at least 32 bytes"
	stores := realStores(t)
	start := func(secret, previous string) *harness.Instance {
		env := maps.Clone(stores)
		env["JWT_SECRET"], env["JWT_SECRET_PREVIOUS"] = secret, previous
		return harness.Start(t, env)
	}
	instances := []*harness.Instance{start(oldSecret, newSecret), start(newSecret, oldSecret)}
	tenant := harness.NewTenant(t, instances[0], "tenant")
	key := runtimeKey(t, instances[0], tenant.Team.ID)
	for n, i := range instances {
		channel := fmt.Sprintf(`"channel":"call-%d"`, n)
		var replies []string
		for _, at := range []*harness.Instance{i, instances[1-n]} {
			r := greetedRuntime(t, at, key, `"name":"x"`)
			claimed := r.must("open", channel+fmt.Sprintf(`,"endpoint":%q`, tenant.Endpoint.ID))
			awaited := r.must("await", channel+`,"workItemId":"w"`)
			replies = append(replies, fmt.Sprint(claimed["claim"], awaited["token"]))
		}
		testkit.Equal(t, fmt.Sprintf("first on instance %d: claim and token", n), replies[0], replies[1])
	}
}

// While too few replicas confirm writes, a runtime's requests are rejected.
func TestRuntimeRequestsWaitForReplicas(t *testing.T) {
	t.Parallel()
	env, master := harness.RealStores(t)
	replica := testkit.StartReplica(t, master)
	env["KV_MIN_REPLICAS"] = "1"
	i, tenant := startTenant(t, env)
	r := greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"x"`)
	r.must("open", fmt.Sprintf(`"channel":"c","endpoint":%q`, tenant.Endpoint.ID))
	send := `"channel":"c","messages":[{"type":"chat","messageId":"00000000-0000-4000-8000-000000000001","chat":{}}]`
	r.must("send", send)
	replica.Freeze()
	m := r.reply(r.send("send", strings.Replace(send, "0001", "0002", 1)))
	if e, _ := m["error"].(map[string]any); e["code"] != "SERVICE_UNAVAILABLE" || e["details"].(map[string]any)["retryAfterMs"] == nil {
		t.Errorf("send without the replica: %v, want SERVICE_UNAVAILABLE with retryAfterMs", m)
	}
	replica.Thaw()
	testkit.Until(t, "the replica is back", func() bool {
		return r.reply(r.send("send", `"retry":true,`+strings.Replace(send, "0001", "0002", 1)))["ok"] != nil
	})
}

func TestRuntimeAudio(t *testing.T) {
	t.Parallel()
	onEmbeddedAndReal(t, func(t *testing.T, env harness.Env) {
		i, tenant := startTenant(t, env)
		b, _ := tenant.Connect(t, i, "mode", "audio")
		r := greetedRuntime(t, i, runtimeKey(t, i, tenant.Team.ID), `"name":"x"`)
		r.must("accept", "")
		r.entry()
		received := make(chan struct{})
		var sending sync.WaitGroup
		sending.Go(func() { // audio is not kept until the instance has subscribed to it
			for {
				b.Send("audio", "audio", `{"data":"from the browser"}`)
				select {
				case <-received:
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
		m := r.push("audio")
		close(received)
		sending.Wait()
		if message := m["message"].(map[string]any); m["channel"] != b.Session || fmt.Sprint(message["audio"]) != "map[data:from the browser]" {
			t.Errorf("audio %v", m)
		}
		r.write(fmt.Sprintf(`{"op":"audio","channel":%q,"message":{"type":"audio","audio":{"data":"from the runtime"}}}`, b.Session))
		b.Expect("from the runtime")
		r.write(`{"op":"audio","channel":"unknown","message":{"type":"audio","audio":{}}}`)
		if e, _ := r.reply(0)["error"].(map[string]any); e["code"] != "NOT_FOUND" {
			t.Errorf("audio for an unknown channel: %v", e)
		}
	})
}
