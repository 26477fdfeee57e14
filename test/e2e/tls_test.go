package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"telapi/test/contract"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// tlsEnv returns the settings of a TLS listener and the CA of its certificate.
func tlsEnv(t *testing.T) (*testkit.CA, harness.Env) {
	ca := testkit.NewCA(t)
	cert, key := ca.Issue(t, "localhost")
	return ca, harness.Env{
		"API_TLS_ENABLED":        "true",
		"EDGE_TLS_FULLCHAIN_B64": base64.StdEncoding.EncodeToString(cert),
		"EDGE_TLS_PRIVKEY_B64":   base64.StdEncoding.EncodeToString(key),
	}
}

// net/http does not end floods of HTTP/2 frames.
func TestTLSOffersOnlyHTTP1(t *testing.T) {
	ca, env := tlsEnv(t)
	i := harness.Start(t, env)
	address := strings.TrimPrefix(i.URL, "https://")
	config := ca.ClientTLS()
	config.NextProtos = []string{"h2", "http/1.1"}
	conn, err := tls.Dial("tcp", address, config)
	testkit.Must(t, err)
	defer func() { _ = conn.Close() }()
	testkit.Equal(t, "protocol", conn.ConnectionState().NegotiatedProtocol, "http/1.1")
	_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if answer, _ := io.ReadAll(conn); !strings.HasPrefix(string(answer), "HTTP/1.1 404 ") {
		t.Errorf("the preface of HTTP/2 gets %q, want 404", answer)
	}
	config.NextProtos = []string{"h2"}
	if conn, err := tls.Dial("tcp", address, config); err == nil {
		_ = conn.Close()
		t.Error("a client that only uses HTTP/2 can connect")
	}

	harness.NewTenant(t, withTLS(t, i, ca), "tenant").Connect(t, i)
}

// withTLS lets the instance's clients trust the CA.
func withTLS(t *testing.T, i *harness.Instance, ca *testkit.CA) *harness.Instance {
	transport := &http.Transport{TLSClientConfig: ca.ClientTLS()}
	t.Cleanup(transport.CloseIdleConnections)
	i.Client, i.TLS = &http.Client{Transport: contract.Transport(t, transport)}, ca.ClientTLS()
	return i
}

func TestDemoRunsCallsOverTLS(t *testing.T) {
	ca, env := tlsEnv(t)
	i := withTLS(t, harness.StartDev(t, env, true), ca)
	demo, err := i.App.Demo(t.Context())
	testkit.Must(t, err)
	b, _ := harness.DevOutput{Key: demo.Key.Reveal(), EndpointID: demo.EndpointID}.Connect(t, i, "chat")
	for !strings.Contains(b.Next().Raw, "this is the demo bot") {
	}
}
