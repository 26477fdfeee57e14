package hostile

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"telapi/test/boot"
	"telapi/test/contract"
	"telapi/test/poll"
	"telapi/test/servers"
)

// Connections and frames of an attack over HTTP/2.
const (
	http2Connections = 50
	http2Streams     = 100    // per connection; the server permits 32
	http2Frames      = 12_000 // per connection of a flood; 10,000 replies may wait
)

// http2Client sends frames over HTTP/2, whether the server permits them or not.
type http2Client struct {
	*http2.Framer
	conn *tls.Conn
}

// dialHTTP2 opens a connection. If read is false, the client never reads.
func (a *target) dialHTTP2(read bool, settings ...http2.Setting) *http2Client {
	conn := tls.Client(a.dial(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	c := &http2Client{http2.NewFramer(conn, nil), conn}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		a.Error(err)
	}
	_ = c.WriteSettings(settings...)
	if read {
		go func() { _, _ = io.Copy(io.Discard, conn) }()
	}
	return c
}

// open starts request n of the connection. It reports whether the server still accepts frames.
func (c *http2Client) open(n int, method, path string, headers ...hpack.HeaderField) bool {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "a"}, {Name: ":path", Value: path},
	}, headers...) {
		_ = encoder.WriteField(f)
	}
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID(n), BlockFragment: block.Bytes(), EndHeaders: true, EndStream: method == "GET"}) == nil
}

func streamID(n int) uint32 { return uint32(2*n + 1) }

const callbackPath = "/api/v1/webhooks/bot/call-1"

var callbackHeaders = []hpack.HeaderField{{Name: "content-type", Value: "application/json"}, {Name: "token", Value: "made-up"}}

// http2Attacks are what one connection does.
var http2Attacks = map[string]func(*target) *http2Client{
	"bodies that never end": func(a *target) *http2Client {
		c := a.dialHTTP2(true)
		part := bytes.Repeat([]byte("["), 15<<10)
		for n := range http2Streams {
			if !c.open(n, "POST", callbackPath, callbackHeaders...) || c.WriteData(streamID(n), false, part) != nil {
				break
			}
		}
		return c
	},
	"responses that are not accepted": func(a *target) *http2Client {
		c := a.dialHTTP2(true, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for n := range http2Streams {
			path := []string{"/metrics", "/openapi.yaml", "/health", "/unknown"}[n%4]
			if !c.open(n, "GET", path) {
				break
			}
		}
		return c
	},
	"streams that are reset": func(a *target) *http2Client {
		c := a.dialHTTP2(true)
		for n := range http2Frames / 10 {
			if !c.open(n, "POST", callbackPath, callbackHeaders...) || c.WriteRSTStream(streamID(n), http2.ErrCodeCancel) != nil {
				break
			}
		}
		return c
	},
	"headers that never end": func(a *target) *http2Client {
		c := a.dialHTTP2(true)
		_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
		var block bytes.Buffer
		_ = hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("y", 8<<10), Sensitive: true})
		for range http2Frames {
			if c.WriteContinuation(1, false, block.Bytes()) != nil {
				break
			}
		}
		return c
	},
	"pings": func(a *target) *http2Client {
		c := a.dialHTTP2(false)
		for range http2Frames {
			if c.WritePing(false, [8]byte{}) != nil {
				break
			}
		}
		return c
	},
	"settings": func(a *target) *http2Client {
		c := a.dialHTTP2(false)
		for n := range http2Frames {
			if c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n)}) != nil {
				break
			}
		}
		return c
	},
	"frames that are announced": func(a *target) *http2Client {
		c := a.dialHTTP2(true)
		_ = c.WriteRawFrame(http2.FrameData, 0, 1, nil)
		_, _ = c.conn.Write([]byte{0, 0x40, 0, 0, 0, 0, 0, 0, 1}) // 16 KiB that never arrive
		return c
	},
}

// startTLSTarget starts a target with a TLS listener.
func startTLSTarget(t *testing.T) *target {
	t.Helper()
	cert, key := servers.NewCA(t).Issue(t, "127.0.0.1")
	return startTargetWith(t, boot.Env{
		"API_TLS_ENABLED":        "true",
		"EDGE_TLS_FULLCHAIN_B64": base64.StdEncoding.EncodeToString(cert),
		"EDGE_TLS_PRIVKEY_B64":   base64.StdEncoding.EncodeToString(key),
	}, func(env boot.Env) (*boot.Instance, *boot.Process) {
		env, url := boot.ServeEnv(t, env)
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
		t.Cleanup(transport.CloseIdleConnections)
		i := &boot.Instance{URL: "https" + strings.TrimPrefix(url, "http"), Client: &http.Client{Transport: contract.Transport(t, transport)}}
		process := boot.StartProcess(t, env, "serve")
		poll.Until(t, i.URL+" is healthy", func() bool { return i.HealthStatus() == http.StatusOK })
		return i, process
	})
}

// Over HTTP/2, one connection has many requests, and frames that are not requests.
func TestHTTP2NeedsBoundedMemory(t *testing.T) {
	a := startTLSTarget(t)
	a.attack(growth{log: maxLogGrowth, redis: 32 << 20, database: 1 << 20}, func() {
		var open []*http2Client // until all attacks have run
		for name, attack := range http2Attacks {
			clients := make([]*http2Client, http2Connections)
			inParallel(http2Connections, func(i int) { clients[i] = attack(a) })
			open = append(open, clients...)
			t.Logf("%s: memory %d MB", name, a.memory("VmRSS"))
		}
		for _, c := range open {
			_ = c.conn.NetConn().Close()
		}
	})
}
