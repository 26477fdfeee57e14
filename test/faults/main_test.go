// Package faults breaks what a conversation stands on, or talks to it as nobody
// should, and sees that every promise to browser and runtime is kept.
package faults

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/test/boot"
	"telapi/test/servers"
	"telapi/test/talk"
)

func TestMain(m *testing.M) { servers.Main(m) }

// place is an instance with a tenant on it.
type place struct {
	*boot.Instance
	env              boot.Env
	team, ep, apiKey string
}

// newPlace starts an instance on the stores of env.
func newPlace(t *testing.T, env boot.Env) *place {
	t.Helper()
	env = talk.WithDataDir(t, env)
	p := &place{Instance: boot.Start(t, env), env: env}
	admin, name := p.App.Admin(), "own"
	team, err := admin.Teams.Create(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := admin.Endpoints.Create(t.Context(), endpoint.Endpoint{TeamID: team.ID, Name: name, Modes: endpoint.Modes})
	if err != nil {
		t.Fatal(err)
	}
	_, secret, err := admin.Keys.Create(t.Context(), team.ID, "", auth.Scopes, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	p.team, p.ep, p.apiKey = team.ID, ep.ID, secret.Reveal()
	return p
}

// twin is a second instance on the same stores.
func (p *place) twin(t *testing.T) *boot.Instance {
	env := maps.Clone(p.env)
	env["DATA_DIR"] = t.TempDir()
	return boot.Start(t, env)
}

// session issues a token; options are further members of the request and their values.
func (p *place) session(t *testing.T, options ...any) (id, token string) {
	t.Helper()
	body := map[string]any{"endpointId": p.ep, "mode": "chat"}
	for i := 0; i+1 < len(options); i += 2 {
		body[options[i].(string)] = options[i+1]
	}
	return talk.Issue(t, p.Instance, p.apiKey, body)
}

// page opens a session and its first socket, up to the ready frame.
func (p *place) page(t *testing.T, options ...any) (b *talk.Browser, token string) {
	t.Helper()
	id, token := p.session(t, options...)
	b = talk.Connect(t, p.Instance, id, token, "")
	b.Expect(`"event":"ready"`)
	return b, token
}

// conversation is a page and the runtime's end of it.
func (p *place) conversation(t *testing.T, options ...any) (*talk.Browser, string, *callruntime.Channel) {
	t.Helper()
	b, token := p.page(t, options...)
	return b, token, talk.Accept(t, talk.StartRuntime(t, p.env))
}

func realStores(t *testing.T, redis ...servers.RedisOption) (boot.Env, *servers.Redis) {
	r := servers.StartRedis(t, redis...)
	return boot.Env{"DATABASE_URL": servers.SharedPostgres(t).NewDatabase(t), "REDIS_URL": r.URL()}, r
}

// backends tries a promise on the embedded and on real stores, with further settings.
func backends(t *testing.T, settings boot.Env, try func(t *testing.T, p *place)) {
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		env := boot.Env{}
		maps.Copy(env, settings)
		try(t, newPlace(t, env))
	})
	t.Run("postgres and redis", func(t *testing.T) {
		t.Parallel()
		env, _ := realStores(t)
		maps.Copy(env, settings)
		try(t, newPlace(t, env))
	})
}

// store sends a command to the key-value store.
func (p *place) store(t *testing.T, command func(rueidis.Client) rueidis.Completed) {
	t.Helper()
	where, err := callruntime.Locate(p.env["REDIS_URL"], p.env["DATA_DIR"])
	if err != nil {
		t.Fatal(err)
	}
	where.DisableCache = true
	client, err := rueidis.NewClient(where)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Do(t.Context(), command(client)).Error(); err != nil {
		t.Fatal(err)
	}
}

// ask sends a request and returns status, header and body.
func ask(t *testing.T, i *boot.Instance, method, path string, headers ...string) (int, http.Header, string) {
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
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, string(body)
}

// metric tells whether /metrics holds the line.
func metric(t *testing.T, i *boot.Instance, line string) bool {
	t.Helper()
	_, _, body := ask(t, i, http.MethodGet, "/metrics")
	return strings.Contains(body, line)
}

// refused dials a socket that must not open.
func refused(t *testing.T, i *boot.Instance, token, query string, status int, code string) {
	t.Helper()
	_, resp, err := talk.Dial(t, i, token, query)
	body := talk.Body(resp)
	if err == nil || resp == nil || resp.StatusCode != status || !strings.Contains(body, `"`+code+`"`) {
		t.Errorf("the handshake: %v %s, want %d %s", err, body, status, code)
	}
}
