package harness

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"testing"

	"telapi/test/testkit"
)

// SiteOptions describes an installation.
type SiteOptions struct {
	Balancer Balancer
	Env      Env // settings of the instances, with DATABASE_URL and REDIS_URL
	Program  Program
	// Forward returns the address at which the balancer reaches an instance. Nil
	// means the address of the instance.
	Forward func(address string) string
}

// Site is two instances behind a load balancer.
type Site struct {
	Env       Env
	Program   Program // runs instances and commands that are started from now on
	Instances [2]*Process
	URL       string        // of the balancer
	Output    func() string // of the balancer
	Endpoint  string        // for mode chat
	Key       string        // API key for tokens, endpoints and runtimes

	t     testing.TB
	ports [2]int
	ca    *testkit.CA
}

// StartSite starts the instances and the balancer. They run until the test ends. Rate
// limits and quota are so high that they don't matter.
func StartSite(t testing.TB, o SiteOptions) *Site {
	t.Helper()
	s := &Site{t: t, ca: testkit.NewCA(t), Program: o.Program, Env: Merge(Env{
		"JWT_SECRET": Secret, "DATA_DIR": t.TempDir(), "TRUSTED_PROXIES": "127.0.0.1", "LOG_LEVEL": "warn",
	}, o.Env)}
	var backends [2]string
	for n := range s.Instances {
		s.ports[n] = testkit.FreePort(t)
		backends[n] = s.Address(n)
		if o.Forward != nil {
			backends[n] = o.Forward(backends[n])
		}
		s.StartInstance(n)
	}
	for n := range s.Instances {
		s.AwaitHealthy(n)
	}
	s.seed()
	s.startBalancer(o.Balancer, backends)
	return s
}

// seed creates a team, an endpoint and an API key, and raises all limits.
func (s *Site) seed() {
	s.t.Helper()
	team := s.Telapi("team", "create", "site")["id"].(string)
	s.Endpoint = s.Telapi("endpoint", "create", "--team", team, "--name", "front door", "--mode", "chat")["id"].(string)
	s.Key = s.Telapi("key", "create", "--team", team, "--scope", "CREATE_CALL_TOKEN", "--scope", "READ_TEAM_APPS", "--scope", "RUN_CALLS")["key"].(string)
	s.Telapi("quota", "set", team, "10000000")
	for _, tier := range []string{"api", "auth", "webhook"} {
		s.Telapi("limits", "set", "--tier", tier, "--max", "100000000", "--window", "1m")
	}
}

// Telapi runs a CLI command and returns its JSON output.
func (s *Site) Telapi(args ...string) map[string]any {
	s.t.Helper()
	return s.Program.RunJSON(s.t, s.Env, args...)
}

// Address returns the address of an instance.
func (s *Site) Address(n int) string { return "127.0.0.1:" + strconv.Itoa(s.ports[n]) }

// StartInstance starts an instance, with the settings in Env.
func (s *Site) StartInstance(n int) {
	s.t.Helper()
	s.Instances[n] = s.Program.Start(s.t, Merge(s.Env, Env{"TELAPI_PORT": strconv.Itoa(s.ports[n])}), "serve")
}

// KillInstance kills an instance with SIGKILL.
func (s *Site) KillInstance(n int) {
	s.t.Helper()
	_ = s.Instances[n].Cmd.Process.Kill()
	s.Instances[n].WaitExit(s.t)
}

// AwaitHealthy waits until an instance is healthy.
func (s *Site) AwaitHealthy(n int) {
	s.t.Helper()
	testkit.Until(s.t, fmt.Sprintf("instance %d is healthy", n), func() bool { return health(http.DefaultClient, "http://"+s.Address(n)) == nil })
}

// health returns nil if a server responds that it is healthy.
func health(client *http.Client, url string) error {
	resp, err := client.Get(url + "/health")
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// CA returns the certificate of the balancer's authority as PEM.
func (s *Site) CA() []byte { return s.ca.PEM() }

// TLS returns the configuration of a client of the balancer.
func (s *Site) TLS() *tls.Config { return s.ca.ClientTLS() }
