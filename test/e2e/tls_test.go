package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/net/http2"

	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
	"telapi/test/talk"
)

// tlsEnv returns the settings of a TLS listener and the CA of its certificate.
func tlsEnv(t *testing.T) (*servers.CA, boot.Env) {
	ca := servers.NewCA(t)
	cert, key := ca.Issue(t, "localhost")
	return ca, boot.Env{
		"API_TLS_ENABLED":        "true",
		"EDGE_TLS_FULLCHAIN_B64": base64.StdEncoding.EncodeToString(cert),
		"EDGE_TLS_PRIVKEY_B64":   base64.StdEncoding.EncodeToString(key),
	}
}

func TestTLSAcceptsOnlyAEADSuites(t *testing.T) {
	ca, env := tlsEnv(t)
	i := boot.Launch(t, env)
	if !strings.HasPrefix(i.URL, "https://") {
		t.Fatalf("URL is %s, want https", i.URL)
	}
	dial := func(c *tls.Config) error {
		c.RootCAs = ca.Roots()
		conn, err := tls.Dial("tcp", strings.TrimPrefix(i.URL, "https://"), c)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	allow := func(version uint16, suites ...uint16) *tls.Config {
		return &tls.Config{MinVersion: version, MaxVersion: version, CipherSuites: suites}
	}
	for name, c := range map[string]struct {
		config *tls.Config
		ok     bool
	}{
		"TLS 1.3":                  {allow(tls.VersionTLS13), true},
		"TLS 1.2 AES-GCM":          {allow(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256), true},
		"TLS 1.2 ChaCha20":         {allow(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256), true},
		"TLS 1.2 CBC":              {allow(tls.VersionTLS12, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA), false},
		"TLS 1.1":                  {allow(tls.VersionTLS11), false},
		"TLS 1.2 RSA key exchange": {allow(tls.VersionTLS12, tls.TLS_RSA_WITH_AES_128_GCM_SHA256), false},
	} {
		if err := dial(c.config); (err == nil) != c.ok {
			t.Errorf("%s: handshake returned %v, want success: %v", name, err, c.ok)
		}
	}
}

// The API is available over HTTP/2. WebSockets use HTTP/1.1, which clients select
// because the server does not announce WebSockets over HTTP/2.
func TestTLSOffersHTTP2AndWebSocketsStayOnHTTP1(t *testing.T) {
	ca, env := tlsEnv(t)
	i := boot.Start(t, env)
	tenant := boot.NewTenant(t, i, "tenant")
	transport := &http.Transport{TLSClientConfig: ca.ClientTLS(), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	call := func(method, path, body string, status int) (response string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, i.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-API-Key", tenant.Key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
		raw := talk.Body(resp)
		_ = resp.Body.Close()
		if resp.StatusCode != status || resp.ProtoMajor != 2 || resp.Header.Get("Upgrade") != "" {
			t.Errorf("%s %.40s: %s %d %s, want HTTP/2.0 and %d", method, path, resp.Proto, resp.StatusCode, raw, status)
		}
		return raw
	}
	call("GET", "/health", "", 200)
	call("GET", "/api/v1/endpoints", "", 200)
	call("GET", "/unknown", "", 404)
	call("POST", "/api/v1/webhooks/bot/call-1", strings.Repeat(" ", 300<<10), 401)
	var issued struct{ Token string }
	answer := call("POST", "/api/v1/sessions/token", `{"endpointId":"`+tenant.Endpoint.ID+`","mode":"chat"}`, 201)
	if err := json.Unmarshal([]byte(answer), &issued); err != nil {
		t.Fatal(err)
	}
	call("GET", "/ws/session?token="+issued.Token, "", 426)

	dialer := websocket.Dialer{TLSClientConfig: ca.ClientTLS()}
	ws, _, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(i.URL, "https")+"/ws/session?token="+issued.Token, nil)
	if err != nil {
		t.Fatalf("open a WebSocket: %v", err)
	}
	defer func() { _ = ws.Close() }()
	if _, frame, err := ws.ReadMessage(); err != nil || !strings.Contains(string(frame), `"event":"ready"`) {
		t.Errorf("first frame %s (%v), want ready", frame, err)
	}
}

func TestInvalidTLSCertificatePreventsStart(t *testing.T) {
	cert, _ := servers.NewCA(t).Issue(t, "localhost")
	_, otherKey := servers.NewCA(t).Issue(t, "localhost")
	b64 := base64.StdEncoding.EncodeToString
	for name, c := range map[string]struct{ chain, key, names string }{
		"missing":    {"", "", "EDGE_TLS_FULLCHAIN_B64"},
		"no key":     {b64(cert), "", "EDGE_TLS_PRIVKEY_B64"},
		"not base64": {"!!!", b64(otherKey), "EDGE_TLS_FULLCHAIN_B64"},
		"not PEM":    {b64([]byte("x")), b64([]byte("y")), "EDGE_TLS_"},
		"other key":  {b64(cert), b64(otherKey), "EDGE_TLS_"},
	} {
		env, _ := boot.ServeEnv(t, boot.Env{"API_TLS_ENABLED": "true", "EDGE_TLS_FULLCHAIN_B64": c.chain, "EDGE_TLS_PRIVKEY_B64": c.key})
		if r := telapi(t, env, "serve"); r.exit != 1 || !strings.Contains(r.stderr, c.names) {
			t.Errorf("%s: exit %d, stderr %s; want exit 1 and %s in it", name, r.exit, r.stderr, c.names)
		}
	}
}

// The server allocates the memory for a frame when the header of the frame arrives.
// Without a limit, a client could allocate megabytes with a header of 9 bytes.
func TestLargeHTTP2FrameIsRejected(t *testing.T) {
	ca, env := tlsEnv(t)
	i := boot.Launch(t, env)
	config := ca.ClientTLS()
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(i.URL, "https://"), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(poll.Timeout))
	framer := http2.NewFramer(conn, conn)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	// The header of a HEADERS frame with one byte more than the maximum of 16 KiB.
	if _, err := conn.Write([]byte{0x00, 0x40, 0x01, byte(http2.FrameHeaders), 0, 0, 0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatalf("the connection ended without GOAWAY: %v", err)
		}
		if end, ok := frame.(*http2.GoAwayFrame); ok {
			if end.ErrCode != http2.ErrCodeFrameSize {
				t.Errorf("GOAWAY has the error %s, want FRAME_SIZE_ERROR", end.ErrCode)
			}
			return
		}
	}
}
