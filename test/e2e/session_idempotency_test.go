package e2e

import (
	"fmt"
	"sync"
	"testing"

	"telapi/test/harness"
)

func TestIdempotencyKeyIsSharedByInstances(t *testing.T) {
	env := realStores(t)
	a, b := harness.Start(t, env), harness.Start(t, env)
	tenant, other := harness.NewTenant(t, a, "tenant"), harness.NewTenant(t, a, "other")
	first := issue(t, a, tenant, `"mode":"chat","metadata":{"a":1,"b":[2]}`, "Idempotency-Key", "order-1")
	again := issue(t, b, tenant, "  \"metadata\" : {\"b\":[2], \"a\":1}, \"mode\":\"\\u0063hat\"", "Idempotency-Key", "order-1")
	if again.SessionID != first.SessionID || again.Token != first.Token || again.ExpiresAt != first.ExpiresAt {
		t.Errorf("first response\n%+v, response to the same request\n%+v", first, again)
	}
	resp, body := b.Post(t, tokenPath, fmt.Sprintf(`{"endpointId":%q,"mode":"chat"}`, tenant.Endpoint.ID), "X-API-Key", tenant.Key, "Idempotency-Key", "order-1")
	wantStatus(t, resp, body, 409, code("IDEMPOTENCY_CONFLICT"))
	if theirs := issue(t, b, other, `"mode":"chat"`, "Idempotency-Key", "order-1"); theirs.SessionID == first.SessionID {
		t.Error("two teams share an idempotency key")
	}

	t.Run("ended session", func(t *testing.T) {
		resp, body := a.Call(t, "DELETE", "/api/v1/sessions/"+first.SessionID, "X-API-Key", tenant.Key)
		wantStatus(t, resp, body, 204, "")
		if again := issue(t, b, tenant, `"mode":"chat","metadata":{"a":1,"b":[2]}`, "Idempotency-Key", "order-1"); again.Token != first.Token {
			t.Error("the response has another token")
		}
	})
	t.Run("rejected request is not stored", func(t *testing.T) {
		resp, body := a.Post(t, tokenPath, `{"endpointId":"ep_none"}`, "X-API-Key", tenant.Key, "Idempotency-Key", "order-2")
		wantStatus(t, resp, body, 404, code("NOT_FOUND"))
		issue(t, b, tenant, `"mode":"chat"`, "Idempotency-Key", "order-2")
	})
	t.Run("concurrent requests", func(t *testing.T) {
		var mu sync.Mutex
		tokens := map[string]bool{}
		var wg sync.WaitGroup
		for n := range 16 {
			wg.Go(func() {
				s := issue(t, []*harness.Instance{a, b}[n%2], tenant, `"mode":"audio"`, "Idempotency-Key", "order-3")
				mu.Lock()
				defer mu.Unlock()
				tokens[s.SessionID+s.Token] = true
			})
		}
		wg.Wait()
		if len(tokens) != 1 {
			t.Errorf("16 concurrent requests got %d sessions, want 1", len(tokens))
		}
	})
}
