package harness

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// Balancer is a load balancer.
type Balancer string

// The load balancers in deploy.
const (
	HAProxy Balancer = "HAProxy"
	Nginx   Balancer = "nginx"
)

// startBalancer starts a balancer for the addresses of the instances.
func (s *Site) startBalancer(b Balancer, backends [2]string) {
	s.t.Helper()
	listen := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(s.t))
	s.URL = "https://" + listen
	_, cert, key := s.ca.Files(s.t, s.t.TempDir(), "127.0.0.1", "localhost")
	start := startHAProxy
	if b == Nginx {
		start = startNginx
	}
	s.Output = start(s.t, listen, backends, cert, key, func() error { return health(s.Client(nil), s.URL) })
}

func startHAProxy(t testing.TB, listen string, backends [2]string, cert, key string, ready func() error) (output func() string) {
	t.Helper()
	certAndKey := write(t, "cert-and-key.pem", read(t, cert)+read(t, key))
	return testkit.StartHAProxy(t, "../../deploy/haproxy/haproxy.cfg", []string{
		"HAPROXY_BIND=" + listen, "HAPROXY_CERT=" + certAndKey, "TELAPI_1=" + backends[0], "TELAPI_2=" + backends[1],
	}, ready)
}

// startNginx replaces only names and addresses in the configuration.
func startNginx(t testing.TB, listen string, backends [2]string, cert, key string, ready func() error) (output func() string) {
	t.Helper()
	config := strings.NewReplacer(
		"pid /run/telapi-nginx.pid;", "",
		"listen 443", "listen "+listen, "telapi.example", "localhost",
		"/etc/telapi/tls/fullchain.pem", cert, "/etc/telapi/tls/privkey.pem", key,
		"127.0.0.1:3001", backends[0], "127.0.0.1:3101", backends[1],
	).Replace(read(t, "../../deploy/nginx/nginx.conf"))
	return testkit.StartNginx(t, write(t, "nginx.conf", config), ready)
}

func read(t testing.TB, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	testkit.Must(t, err)
	return string(content)
}

// write creates a file in a temporary directory and returns its path.
func write(t testing.TB, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	testkit.Must(t, os.WriteFile(file, []byte(content), 0o600))
	return file
}

// Client returns a client of the balancer. Its source address is from, unless that
// is nil.
func (s *Site) Client(from net.IP) *http.Client {
	dialer := &net.Dialer{Timeout: testkit.Timeout}
	if from != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: from}
	}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: s.TLS(), ForceAttemptHTTP2: true}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: testkit.Timeout}
}
