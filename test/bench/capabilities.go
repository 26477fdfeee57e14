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
	"strconv"
)

// capabilities measures an authenticated, rate-limited read against a bare
// handler that writes the same bytes.
func capabilities(s settings) error {
	dir, err := os.MkdirTemp("", "telapi-bench")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	t, err := startTelapi(dir)
	if err != nil {
		return err
	}
	defer t.stop()

	const path = "/api/v1/runtime/capabilities"
	body, err := t.get(path)
	if err != nil {
		return err
	}
	peer, stopPeer, err := startPeer(body)
	if err != nil {
		return err
	}
	defer stopPeer()

	request := func(addr string) []byte {
		return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nAccept: */*\r\n\r\n", path, addr, t.key)
	}
	before, err := t.leases()
	if err != nil {
		return err
	}
	fmt.Printf("GET %s (%d bytes), %d connections, %d rounds of %s each, in turns, key-value store: %s\n",
		path, len(body), s.connections, s.rounds, s.span, t.store)
	ours, bare, err := interleave(s.rounds,
		func() (result, error) { return load(t.addr, request(t.addr), s.connections, s.span) },
		func() (result, error) { return load(peer, request(peer), s.connections, s.span) })
	if err != nil {
		return err
	}
	after, err := t.leases()
	if err != nil {
		return err
	}
	sent := ours.perSecond * s.span.Seconds() * float64(s.rounds)
	fmt.Printf("  telapi        %8.0f requests/s   p99 %-10s errors %d\n", ours.perSecond, ours.p99, ours.errors)
	fmt.Printf("  bare net/http %8.0f requests/s   p99 %-10s errors %d\n", bare.perSecond, bare.p99, bare.errors)
	fmt.Printf("  ratio         %8.2f (at least 0.50 wanted)\n", ours.perSecond/bare.perSecond)
	fmt.Printf("  store round trips per 1,000 requests: %.2f\n", (after-before)/sent*1000)
	return nil
}

// telapi is the service under load, in a process of its own.
type telapi struct {
	addr, key, store string
	stop             func()
	env              []string
	binary           string
}

// startTelapi builds and runs the service with its usual log, on a Redis of its
// own where there is one, and lifts the limits that a benchmark would meet.
func startTelapi(dir string) (*telapi, error) {
	t := &telapi{binary: filepath.Join(dir, "telapi"), store: "embedded"}
	if out, err := exec.Command("go", "build", "-o", t.binary, "./cmd/telapi").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build: %w\n%s", err, out)
	}
	t.env = append(os.Environ(), "DATA_DIR="+filepath.Join(dir, "data"), "TELAPI_PORT=0", "OTEL_ENABLED=false")
	stopRedis := func() {}
	if port, stop, err := startRedis(dir); err == nil {
		t.store, stopRedis = "Redis", stop
		t.env = append(t.env, "REDIS_URL=redis://127.0.0.1:"+port)
	}
	cmd := exec.Command(t.binary, "dev", "--json")
	cmd.Env = t.env
	line, stop, err := startServer(cmd)
	if err != nil {
		stopRedis()
		return nil, err
	}
	t.stop = func() { stop(); stopRedis() }
	var card struct{ URL, Key, TeamID string }
	if err := json.Unmarshal([]byte(line), &card); err != nil {
		t.stop()
		return nil, fmt.Errorf("first line %q: %w", line, err)
	}
	u, err := url.Parse(card.URL)
	if err != nil {
		t.stop()
		return nil, err
	}
	t.addr, t.key = net.JoinHostPort("127.0.0.1", u.Port()), card.Key
	for _, args := range [][]string{
		{"limits", "set", "--tier", "api", "--max", "1000000000", "--window", "24h"},
		{"quota", "set", card.TeamID, "1000000000"},
	} {
		if err := t.run(args...); err != nil {
			t.stop()
			return nil, err
		}
	}
	return t, nil
}

func (t *telapi) run(args ...string) error {
	cmd := exec.Command(t.binary, args...)
	cmd.Env = t.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("telapi %v: %w\n%s", args, err, out)
	}
	return nil
}

func (t *telapi) get(path string) ([]byte, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+t.addr+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-API-Key", t.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d: %s", path, resp.StatusCode, body)
	}
	return body, err
}

var leaseLine = regexp.MustCompile(`(?m)^telapi_ratelimit_leases_total (\S+)$`)

// leases is how often the service has asked the store for permits.
func (t *telapi) leases() (float64, error) {
	body, err := t.get("/metrics")
	if err != nil {
		return 0, err
	}
	m := leaseLine.FindSubmatch(body)
	if m == nil {
		return 0, fmt.Errorf("no lease metric in /metrics")
	}
	return strconv.ParseFloat(string(bytes.TrimSpace(m[1])), 64)
}

// startRedis runs Debian's Redis on a free port, without persistence.
func startRedis(dir string) (port string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	_, port, _ = net.SplitHostPort(l.Addr().String())
	_ = l.Close()
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir)
	if _, stop, err = startServer(cmd); err != nil {
		return "", nil, err
	}
	return port, stop, nil
}
