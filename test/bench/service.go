package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"

	"github.com/gorilla/websocket"

	"telapi/callruntime"
	"telapi/test/testkit"
)

// telapi is a running service without the demo runtime, and a team.
type telapi struct {
	*process
	addr, endpoint, key string

	env    []string
	binary string
}

// startTelapi runs the service with default logging and empty stores, and raises
// its limits.
func (s *site) startTelapi(settings ...string) *telapi {
	for _, node := range s.redis {
		node.MustDo("FLUSHALL")
	}
	t := &telapi{
		binary: s.binary,
		env: append(os.Environ(), "TELAPI_PORT=0", "OTEL_ENABLED=false", "SESSION_MAX_FRAMES_PER_SECOND=10000", "TEAM_SHARE_PERCENT=100",
			"REDIS_URL="+s.redisURL, "DATABASE_URL="+s.postgres.NewDatabase(program)+"?sslmode=disable"),
	}
	t.env = append(t.env, settings...)
	t.start()
	var team, endpoint, key struct{ ID, Key string }
	t.run(&team, "team", "create", "bench")
	t.run(&endpoint, "endpoint", "create", "--team", team.ID, "--name", "bench", "--mode", "chat")
	t.run(&key, "key", "create", "--team", team.ID, "--scope", "CREATE_CALL_TOKEN", "--scope", "READ_TEAM_APPS", "--scope", "RUN_CALLS")
	t.endpoint, t.key = endpoint.ID, key.Key
	for _, tier := range []string{"api", "auth", "webhook"} {
		t.run(nil, "limits", "set", "--tier", tier, "--max", "1000000000", "--window", "24h")
	}
	t.run(nil, "quota", "set", team.ID, "1000000000")
	return t
}

// startAnother runs an instance with the same stores.
func (t *telapi) startAnother() *telapi {
	another := *t
	another.start()
	return &another
}

// start starts the process with its own data directory and sets its address.
func (t *telapi) start() {
	t.env = append(slices.Clone(t.env), "DATA_DIR="+program.TempDir())
	cmd := exec.Command(t.binary, "dev", "--no-demo", "--json")
	cmd.Env = t.env
	t.process = start(cmd)
	var output struct{ URL string }
	check(json.Unmarshal([]byte(t.line), &output))
	t.addr = net.JoinHostPort("127.0.0.1", must(url.Parse(output.URL)).Port())
}

// run runs a CLI command and decodes its JSON output.
func (t *telapi) run(into any, args ...string) {
	cmd := exec.Command(t.binary, append(args, "--json")...)
	cmd.Env = t.env
	out, err := cmd.Output()
	if err == nil && into != nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		check(fmt.Errorf("telapi %v: %w\n%s", args, err, out))
	}
}

func (t *telapi) get(path string) []byte {
	return t.request(http.MethodGet, path, "", http.StatusOK)
}

func (t *telapi) request(method, path, body string, want int) []byte {
	return request(method, "http://"+t.addr+path, []byte(body), want, "X-API-Key", t.key)
}

var httpClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: testkit.Timeout}

// request sends a request with a credential and returns the body of the response.
func request(method, url string, body []byte, want int, header, credential string) []byte {
	req := must(http.NewRequest(method, url, bytes.NewReader(body)))
	req.Header.Set(header, credential)
	req.Header.Set("Content-Type", "application/json")
	resp := must(httpClient.Do(req))
	defer resp.Body.Close()
	response := must(io.ReadAll(resp.Body))
	if resp.StatusCode != want {
		check(fmt.Errorf("%s %s: status %d: %s", method, url, resp.StatusCode, response))
	}
	return response
}

// metric returns the value of a metric without labels.
func (t *telapi) metric(name string) float64 {
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(t.get("/metrics"))
	if m == nil {
		check(fmt.Errorf("no %s in /metrics", name))
	}
	return must(strconv.ParseFloat(string(m[1]), 64))
}

// connectRuntime connects a runtime to the service.
func (t *telapi) connectRuntime() *callruntime.Runtime {
	return must(callruntime.New(callruntime.Options{URL: "http://" + t.addr, Key: t.key, Name: "bench"}))
}

// sessionToken is the response to a token request.
type sessionToken struct{ SessionID, Token string }

func (t *telapi) issue() (token sessionToken) {
	body := fmt.Sprintf(`{"endpointId":%q,"mode":"chat"}`, t.endpoint)
	check(json.Unmarshal(t.request(http.MethodPost, "/api/v1/sessions/token", body, http.StatusCreated), &token))
	return token
}

// open opens a session's socket and reads its ready frame.
func (t *telapi) open(token sessionToken) *websocket.Conn {
	return dial("ws://"+t.addr+"/ws/session", "telapi.v1", "telapi.bearer."+token.Token)
}

// openSession creates a session and opens its socket.
func (t *telapi) openSession() (sessionToken, *websocket.Conn) {
	token := t.issue()
	return token, t.open(token)
}
