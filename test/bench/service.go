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
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/gorilla/websocket"
)

// telapi is a running service with a team whose sessions the demo runtime does
// not claim.
type telapi struct {
	*process
	addr, team, endpoint, key string

	env    []string
	binary string
	client *http.Client
}

// startTelapi runs the service with default logging and empty stores, and raises
// its limits.
func (s *site) startTelapi(settings ...string) (*telapi, error) {
	dir, err := os.MkdirTemp(s.dir, "data")
	if err != nil {
		return nil, err
	}
	t := &telapi{
		binary: s.binary,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}, Timeout: 30 * time.Second},
		env:    append(os.Environ(), "DATA_DIR="+dir, "TELAPI_PORT=0", "OTEL_ENABLED=false", "SESSION_MAX_FRAMES_PER_SECOND=10000", "TEAM_SHARE_PERCENT=100"),
	}
	t.env = append(t.env, settings...)
	if s.redisURL != "" {
		t.env = append(t.env, "REDIS_URL="+s.redisURL)
		for _, addr := range storeOptions(s.redisURL).InitAddress {
			if _, err := onNode(addr, "FLUSHALL"); err != nil {
				return nil, err
			}
		}
	}
	if s.postgresURL != "" {
		database, err := s.newDatabase("bench_" + filepath.Base(dir))
		if err != nil {
			return nil, err
		}
		t.env = append(t.env, "DATABASE_URL="+database)
	}
	if err := t.start(); err != nil {
		return nil, err
	}
	if err := t.seed(); err != nil {
		t.kill()
		return nil, err
	}
	return t, nil
}

// startAnother runs an instance with the same stores.
func (t *telapi) startAnother(dir string) (*telapi, error) {
	data, err := os.MkdirTemp(dir, "data")
	if err != nil {
		return nil, err
	}
	another := *t
	another.env = append(slices.Clone(t.env), "DATA_DIR="+data)
	return &another, another.start()
}

// start starts the process and sets its address.
func (t *telapi) start() (err error) {
	cmd := exec.Command(t.binary, "dev", "--json")
	cmd.Env = t.env
	if t.process, err = start(cmd); err != nil {
		return err
	}
	var output struct{ URL string }
	if err := json.Unmarshal([]byte(t.line), &output); err != nil {
		return fmt.Errorf("first line %q: %w", t.line, err)
	}
	u, err := url.Parse(output.URL)
	if err != nil {
		return err
	}
	t.addr = net.JoinHostPort("127.0.0.1", u.Port())
	return nil
}

func (t *telapi) seed() error {
	var team, endpoint, key struct{ ID, Key string }
	if err := t.run(&team, "team", "create", "bench"); err != nil {
		return err
	}
	if err := t.run(&endpoint, "endpoint", "create", "--team", team.ID, "--name", "bench", "--mode", "chat"); err != nil {
		return err
	}
	if err := t.run(&key, "key", "create", "--team", team.ID, "--scope", "CREATE_CALL_TOKEN", "--scope", "READ_TEAM_APPS",
		"--scope", "READ_TEAM_USAGE", "--scope", "RUN_CALLS", "--scope", "MANAGE_TEAM", "--scope", "MANAGE_PLATFORM"); err != nil {
		return err
	}
	t.team, t.endpoint, t.key = team.ID, endpoint.ID, key.Key
	for _, args := range [][]string{
		{"limits", "set", "--tier", "api", "--max", "1000000000", "--window", "24h"},
		{"limits", "set", "--tier", "auth", "--max", "1000000000", "--window", "24h"},
		{"quota", "set", team.ID, "1000000000"},
	} {
		if err := t.run(nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// run runs a CLI command and decodes its JSON output.
func (t *telapi) run(into any, args ...string) error {
	cmd := exec.Command(t.binary, append(args, "--json")...)
	cmd.Env = t.env
	out, err := cmd.Output()
	if err == nil && into != nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		return fmt.Errorf("telapi %v: %w\n%s", args, err, out)
	}
	return nil
}

func (t *telapi) get(path string) ([]byte, error) {
	return t.request(http.MethodGet, path, "", http.StatusOK)
}

func (t *telapi) request(method, path, body string, want int) ([]byte, error) {
	req, err := http.NewRequest(method, "http://"+t.addr+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-API-Key", t.key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	response, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, response)
	}
	return response, err
}

// metric returns the value of a metric without labels.
func (t *telapi) metric(name string) (float64, error) {
	body, err := t.get("/metrics")
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(body)
	if m == nil {
		return 0, fmt.Errorf("no %s in /metrics", name)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// sessionToken is the response to a token request.
type sessionToken struct{ SessionID, Token string }

func (t *telapi) issue() (token sessionToken, err error) {
	response, err := t.request(http.MethodPost, "/api/v1/sessions/token",
		fmt.Sprintf(`{"endpointId":%q,"mode":"chat"}`, t.endpoint), http.StatusCreated)
	if err == nil {
		err = json.Unmarshal(response, &token)
	}
	return token, err
}

// open opens a session's socket and reads its ready frame.
func (t *telapi) open(token sessionToken) (*websocket.Conn, error) {
	return dial("ws://"+t.addr+"/ws/session", "telapi.v1", "telapi.bearer."+token.Token)
}
