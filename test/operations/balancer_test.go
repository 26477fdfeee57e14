// Package operations tests deployments as docs/operations.md describes them: load
// balancers, restarts, rotations, releases.
package operations

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
)

func TestMain(m *testing.M) { servers.Main(m) }

// site is two instances behind a load balancer.
type site struct {
	t         *testing.T
	env       boot.Env
	ports     [2]int
	instances [2]*boot.Process
	public    *boot.Instance // the balancer
	output    func() string  // of the balancer
	roots     *x509.CertPool
	key       string
	endpoint  string
}

// balancers start a load balancer with the configuration in deploy. Only names
// and addresses are replaced. ready returns nil once the balancer responds.
var balancers = map[string]func(s *site, port int, cert, key string, ready func() error) (output func() string){
	"HAProxy": func(s *site, port int, cert, key string, ready func() error) func() string {
		certAndKey := filepath.Join(s.t.TempDir(), "cert-and-key.pem")
		chain, _ := os.ReadFile(cert)
		private, _ := os.ReadFile(key)
		if err := os.WriteFile(certAndKey, append(chain, private...), 0o600); err != nil {
			s.t.Fatal(err)
		}
		return servers.StartHAProxy(s.t, "../../deploy/haproxy/haproxy.cfg", []string{
			fmt.Sprintf("HAPROXY_BIND=127.0.0.1:%d", port), "HAPROXY_CERT=" + certAndKey,
			"TELAPI_1=" + s.address(0), "TELAPI_2=" + s.address(1),
		}, ready)
	},
	"nginx": func(s *site, port int, cert, key string, ready func() error) func() string {
		template, err := os.ReadFile("../../deploy/nginx/nginx.conf")
		if err != nil {
			s.t.Fatal(err)
		}
		config := strings.NewReplacer(
			"pid /run/telapi-nginx.pid;", "",
			"listen 443", fmt.Sprintf("listen 127.0.0.1:%d", port), "telapi.example", "localhost",
			"/etc/telapi/tls/fullchain.pem", cert, "/etc/telapi/tls/privkey.pem", key,
			"127.0.0.1:3001", s.address(0), "127.0.0.1:3101", s.address(1),
		).Replace(string(template))
		file := filepath.Join(s.t.TempDir(), "nginx.conf")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			s.t.Fatal(err)
		}
		return servers.StartNginx(s.t, file, ready)
	},
}

func (s *site) address(n int) string { return "127.0.0.1:" + strconv.Itoa(s.ports[n]) }

func newSite(t *testing.T, balancer string) *site {
	t.Helper()
	return newSiteOn(t, balancer, servers.SharedPostgres(t).NewDatabase(t))
}

func newSiteOn(t *testing.T, balancer, database string) *site {
	t.Helper()
	s := &site{t: t, env: boot.Env{
		"JWT_SECRET": boot.Secret, "DATA_DIR": t.TempDir(), "TRUSTED_PROXIES": "127.0.0.1",
		"DATABASE_URL": database, "REDIS_URL": servers.StartRedis(t).URL(),
		"DRAIN_DELAY": "6s", "SESSION_RECONNECT_JITTER": "500ms", "LOG_LEVEL": "warn",
	}}
	s.ports = [2]int{servers.FreePort(t), servers.FreePort(t)}
	for n := range s.instances {
		s.start(n)
	}
	for n := range s.instances {
		s.awaitHealthy(n)
	}
	s.seed()

	ca := servers.NewCA(t)
	s.roots = poolOf(ca)
	_, cert, key := ca.Files(t, t.TempDir(), "127.0.0.1", "localhost")
	port := servers.FreePort(t)
	s.public = &boot.Instance{URL: fmt.Sprintf("https://127.0.0.1:%d", port), Client: s.client(nil)}
	s.output = balancers[balancer](s, port, cert, key, func() error {
		resp, err := s.client(nil).Get(s.public.URL + "/health")
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	})
	return s
}

// seed creates a team, an endpoint and an API key with the CLI.
func (s *site) seed() {
	s.t.Helper()
	team := s.telapi("team", "create", "site")["id"]
	s.endpoint = s.telapi("endpoint", "create", "--team", team, "--name", "front door", "--mode", "chat")["id"]
	s.key = s.telapi("key", "create", "--team", team, "--scope", "CREATE_CALL_TOKEN", "--scope", "READ_TEAM_APPS")["key"]
	s.telapi("quota", "set", team, "1000000")
	for _, tier := range []string{"api", "auth"} {
		s.telapi("limits", "set", "--tier", tier, "--max", "1000000", "--window", "1m")
	}
}

// telapi runs a CLI command and returns the values of its JSON output.
func (s *site) telapi(args ...string) map[string]string {
	s.t.Helper()
	path, err := boot.Binary()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), path, append(args, "--json")...)
	cmd.Env = boot.Environ(s.env)
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("telapi %v: %v", args, err)
	}
	var output map[string]any
	_ = json.Unmarshal(out, &output)
	values := map[string]string{}
	for name, value := range output {
		values[name] = fmt.Sprint(value)
	}
	return values
}

// client returns a client of the balancer with a source address.
func (s *site) client(from net.IP) *http.Client {
	dialer := &net.Dialer{Timeout: poll.Timeout}
	if from != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: from}
	}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: s.tls(), ForceAttemptHTTP2: true}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: poll.Timeout}
}

// start starts an instance.
func (s *site) start(n int) {
	env := boot.Env{"TELAPI_PORT": strconv.Itoa(s.ports[n])}
	s.instances[n] = boot.StartProcess(s.t, boot.Merge(env, s.env), "serve")
}

// awaitHealthy waits until an instance is healthy.
func (s *site) awaitHealthy(n int) {
	s.t.Helper()
	poll.Until(s.t, "instance "+strconv.Itoa(n)+" is healthy", func() bool {
		resp, err := http.Get("http://" + s.address(n) + "/health")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

func (s *site) tls() *tls.Config { return &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12} }

// poolOf returns a pool that contains only ca.
func poolOf(ca *servers.CA) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	return roots
}
