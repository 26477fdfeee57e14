// Package faults breaks the services that conversations depend on and sends
// hostile input. It checks that all guarantees to browsers and runtimes hold.
package faults

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"telapi/internal/calls"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// service is an instance with a tenant.
type service struct {
	*harness.Instance
	env                        harness.Env
	teamID, endpointID, apiKey string
}

// startService starts an instance with the given settings.
func startService(t *testing.T, env harness.Env) *service {
	t.Helper()
	env = harness.WithDataDir(t, env)
	svc := &service{Instance: harness.Start(t, env), env: env}
	tenant := harness.NewTenant(t, svc.Instance, "tenant")
	svc.teamID, svc.endpointID, svc.apiKey = tenant.Team.ID, tenant.Endpoint.ID, tenant.Key
	return svc
}

// startPeer starts a second instance on the same stores.
func (svc *service) startPeer(t *testing.T) *harness.Instance {
	env := maps.Clone(svc.env)
	env["DATA_DIR"] = t.TempDir()
	return harness.Start(t, env)
}

// serve starts an instance as a separate process. With real stores it gets its own
// data directory.
func serve(t *testing.T, env harness.Env) (*harness.Instance, *harness.Process) {
	t.Helper()
	env = harness.Merge(harness.Env{"LOG_LEVEL": "warn", "DRAIN_DELAY": "0s"}, env)
	if env["REDIS_URL"] != "" {
		env["DATA_DIR"] = t.TempDir()
	}
	return harness.Serve(t, env)
}

// session creates a session. options are names and values of further members of
// the request.
func (svc *service) session(t *testing.T, options ...any) (id, token string) {
	t.Helper()
	body := map[string]any{"endpointId": svc.endpointID, "mode": "chat"}
	for i := 0; i+1 < len(options); i += 2 {
		body[options[i].(string)] = options[i+1]
	}
	return harness.Issue(t, svc.Instance, svc.apiKey, body)
}

// connect creates a session, opens its first socket and reads the ready frame.
func (svc *service) connect(t *testing.T, options ...any) (b *harness.Browser, token string) {
	t.Helper()
	id, token := svc.session(t, options...)
	b = harness.Connect(t, svc.Instance, id, token, "")
	b.Expect(`"event":"ready"`)
	return b, token
}

// conversation creates a session and returns both ends of it.
func (svc *service) conversation(t *testing.T, options ...any) (*harness.Browser, string, *calls.Channel) {
	t.Helper()
	b, token := svc.connect(t, options...)
	return b, token, harness.Accept(t, harness.StartRuntime(t, svc.env))
}

// onEmbeddedAndReal runs a test on embedded stores and on PostgreSQL with Redis,
// with further settings.
func onEmbeddedAndReal(t *testing.T, settings harness.Env, test func(t *testing.T, svc *service)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		test(t, startService(t, harness.Merge(settings)))
	})
	t.Run("postgres and redis", func(t *testing.T) {
		t.Parallel()
		env, _ := harness.RealStores(t)
		test(t, startService(t, harness.Merge(env, settings)))
	})
}

// onEmbedded runs a test of what does not depend on the store.
func onEmbedded(t *testing.T, settings harness.Env, test func(t *testing.T, svc *service)) {
	t.Parallel()
	test(t, startService(t, harness.Merge(settings)))
}

// store sends a command to the key-value store.
func (svc *service) store(t *testing.T, command func(rueidis.Client) rueidis.Completed) {
	t.Helper()
	client := harness.StoreClient(t, svc.env)
	if err := client.Do(t.Context(), command(client)).Error(); err != nil {
		t.Fatal(err)
	}
}

// hasMetric returns whether /metrics contains the line.
func hasMetric(t *testing.T, i *harness.Instance, line string) bool {
	t.Helper()
	_, body := i.Call(t, http.MethodGet, "/metrics")
	return strings.Contains(body, line)
}

// wantRejected checks that a handshake fails with the given status and error code.
func wantRejected(t *testing.T, i *harness.Instance, token, query string, status int, code string) {
	t.Helper()
	_, resp, err := harness.Dial(t, i, token, query)
	body := harness.Body(resp)
	if err == nil || resp == nil || resp.StatusCode != status || !strings.Contains(body, `"`+code+`"`) {
		t.Errorf("handshake: %v %s, want %d %s", err, body, status, code)
	}
}
