// Package e2e tests the service as its users see it: over HTTP and on the
// command line, with embedded and with real stores, which also fail.
package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// onAllStores runs a test on embedded stores, on PostgreSQL with Redis, and on
// PostgreSQL with a Redis cluster.
func onAllStores(t *testing.T, test func(t *testing.T, env harness.Env)) {
	onEmbeddedAndReal(t, test)
	t.Run("postgres and redis cluster", func(t *testing.T) { test(t, harness.ClusterStores(t)) })
}

// onEmbeddedAndReal runs a test on embedded stores and on PostgreSQL with Redis.
func onEmbeddedAndReal(t *testing.T, test func(t *testing.T, env harness.Env)) {
	t.Run("embedded", func(t *testing.T) { test(t, harness.Env{}) })
	t.Run("postgres and redis", func(t *testing.T) { test(t, realStores(t)) })
}

func realStores(t *testing.T) harness.Env {
	env, _ := harness.RealStores(t)
	return env
}

// startTenant starts an instance with a tenant.
func startTenant(t *testing.T, env harness.Env) (*harness.Instance, harness.Tenant) {
	t.Helper()
	i := harness.Start(t, env)
	return i, harness.NewTenant(t, i, "tenant")
}

// openSession creates a session of the tenant and connects its browser.
func openSession(t *testing.T, i *harness.Instance, tenant harness.Tenant) (session string, b *harness.Browser) {
	t.Helper()
	b, _ = tenant.Connect(t, i)
	return b.Session, b
}

// consoleJWT returns a token as the web console signs it.
func consoleJWT(t *testing.T, teamID string, scopes ...auth.Scope) string {
	t.Helper()
	return consoleJWTWithSecret(t, harness.Secret, teamID, scopes...)
}

func consoleJWTWithSecret(t *testing.T, secret, teamID string, scopes ...auth.Scope) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": "user-1", "teamId": teamID, "scopes": scopes, "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(secret))
	testkit.Must(t, err)
	return token
}

func wantStatus(t *testing.T, resp harness.Response, body string, status int, code string) {
	t.Helper()
	if resp.StatusCode != status || !strings.Contains(body, code) {
		t.Errorf("%s %s: got %d %s, want %d %s", resp.Request.Method, resp.Request.URL.Path, resp.StatusCode, body, status, code)
	}
}

// expectStatus returns wantStatus as a function of a response, for responses that are not
// needed further.
func expectStatus(t *testing.T, status int, code string) func(resp harness.Response, body string) {
	t.Helper()
	return func(resp harness.Response, body string) {
		t.Helper()
		wantStatus(t, resp, body, status, code)
	}
}

// code returns the member of an error envelope that holds the error code.
func code(name string) string { return fmt.Sprintf(`"code":%q`, name) }

func waitForStatus(t *testing.T, i *harness.Instance, status int, path string, headers ...string) {
	t.Helper()
	testkit.Until(t, fmt.Sprintf("GET %s returns %d", path, status), func() bool {
		resp, _ := i.Call(t, http.MethodGet, path, headers...)
		return resp.StatusCode == status
	})
}

// getJSON decodes the body of a 200 response.
func getJSON(t *testing.T, i *harness.Instance, path, key string, into any) {
	t.Helper()
	resp, body := i.Call(t, http.MethodGet, path, "X-API-Key", key)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, resp.StatusCode, body)
	}
	testkit.Must(t, json.Unmarshal([]byte(body), into))
}

func containsAll(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}

// wantNotLeaked checks that texts, such as the log, contain none of the secrets.
func wantNotLeaked(t *testing.T, texts, secrets map[string]string) {
	t.Helper()
	for where, text := range texts {
		for what, secret := range secrets {
			if at := strings.Index(text, secret); at >= 0 {
				t.Errorf("%s contains the %s: …%.300q", where, what, text[max(0, at-150):])
			}
		}
	}
}
