// Package e2e holds the tests that see the service as its users do: over HTTP
// and at the command line, on embedded and on real stores.
package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/internal/team"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

// backends are the stores every promise is tried on.
func backends(t *testing.T, try func(t *testing.T, env boot.Env)) {
	t.Run("embedded", func(t *testing.T) { try(t, boot.Env{}) })
	t.Run("postgres and redis", func(t *testing.T) { try(t, realStores(t)) })
	t.Run("postgres and redis cluster", func(t *testing.T) {
		try(t, boot.Env{
			"DATABASE_URL": servers.SharedPostgres(t).NewDatabase(t),
			"REDIS_URL":    servers.StartRedisCluster(t).URL(),
		})
	})
}

func realStores(t *testing.T) boot.Env {
	return boot.Env{
		"DATABASE_URL": servers.SharedPostgres(t).NewDatabase(t),
		"REDIS_URL":    servers.StartRedis(t).URL(),
	}
}

// tenant is a team with an endpoint and a key of every scope.
type tenant struct {
	team     team.Team
	endpoint endpoint.Endpoint
	keyID    string
	key      string
}

func newTenant(t *testing.T, i *boot.Instance, name string) tenant {
	t.Helper()
	admin := i.App.Admin()
	tm, err := admin.Teams.Create(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := admin.Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: tm.ID, Name: name, Modes: endpoint.Modes})
	if err != nil {
		t.Fatal(err)
	}
	id, key := newKey(t, i, tm.ID, auth.Scopes...)
	return tenant{tm, ep, id, key}
}

func newKey(t *testing.T, i *boot.Instance, teamID string, scopes ...auth.Scope) (id, key string) {
	t.Helper()
	k, secret, err := i.App.Admin().Keys.Create(t.Context(), teamID, "", scopes, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	return k.ID, secret.Reveal()
}

// consoleJWT is what the web console would sign.
func consoleJWT(t *testing.T, teamID string, scopes ...auth.Scope) string {
	t.Helper()
	return consoleJWTUnder(t, boot.Secret, teamID, scopes...)
}

func consoleJWTUnder(t *testing.T, secret, teamID string, scopes ...auth.Scope) string {
	t.Helper()
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"sub": "user-1", "teamId": teamID, "scopes": scopes, "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// answer is a response whose body was read and closed.
type answer struct {
	StatusCode int
	Header     http.Header
	Request    *http.Request
}

// call sends one request and returns the answer and its body.
func call(t *testing.T, i *boot.Instance, method, path string, headers ...string) (answer, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, i.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for h := 0; h+1 < len(headers); h += 2 {
		req.Header.Add(headers[h], headers[h+1])
	}
	resp, err := i.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, resp.Request}, string(body)
}

func wantStatus(t *testing.T, resp answer, body string, status int, code string) {
	t.Helper()
	if resp.StatusCode != status || !strings.Contains(body, code) {
		t.Errorf("%s %s: got %d %s, want %d %s", resp.Request.Method, resp.Request.URL.Path, resp.StatusCode, body, status, code)
	}
}

// code is how an envelope shows an error code.
func code(name string) string { return fmt.Sprintf(`"code":%q`, name) }

func eventuallyStatus(t *testing.T, i *boot.Instance, within time.Duration, status int, path string, headers ...string) {
	t.Helper()
	poll.Within(t, within, fmt.Sprintf("%s answers %d", path, status), func() bool {
		resp, _ := call(t, i, http.MethodGet, path, headers...)
		return resp.StatusCode == status
	})
}

// callJSON reads a 200 into a value.
func callJSON(t *testing.T, i *boot.Instance, path, key string, into any) {
	t.Helper()
	resp, body := call(t, i, http.MethodGet, path, "X-API-Key", key)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, resp.StatusCode, body)
	}
	if err := json.Unmarshal([]byte(body), into); err != nil {
		t.Fatal(err)
	}
}

func newEndpoint(t *testing.T, i *boot.Instance, teamID, name string) string {
	t.Helper()
	e, err := i.App.Admin().Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: teamID, Name: name, Modes: endpoint.Modes})
	if err != nil {
		t.Fatal(err)
	}
	return e.ID
}

func containsAll(text string, parts ...string) bool {
	for _, p := range parts {
		if !strings.Contains(text, p) {
			return false
		}
	}
	return true
}
