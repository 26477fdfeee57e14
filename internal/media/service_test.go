package media_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/test/speechtest"
	"telapi/test/testkit"
)

func TestTokensAreNotLogged(t *testing.T) {
	var log bytes.Buffer
	debug := slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s := start(t, media.Options{MemoryBytes: 1 << 20, UploadTokens: tokens(token), Log: debug}, nil)
	s.mustPut(blobURL, content)
	s.do("PUT", blobURL, "x", "Authorization", "Bearer another-token")
	s.stop()
	if text := log.String(); !strings.Contains(text, `"status":401`) || strings.Contains(text, token) || strings.Contains(text, "another-token") {
		t.Errorf("the log contains a token, or not the rejected request:\n%s", text)
	}
}

func TestDrainingServiceClosesConnections(t *testing.T) {
	s := start(t, media.Options{}, nil)
	if resp, body := s.do("GET", "/health", ""); resp.StatusCode != 200 || body != "ok" || resp.Close {
		t.Errorf("before draining: status %d, %q, close %v; want 200, ok, false", resp.StatusCode, body, resp.Close)
	}
	s.drain()
	if resp, body := s.do("GET", "/health", ""); resp.StatusCode != 503 || !strings.Contains(body, "SERVICE_UNAVAILABLE") || !resp.Close {
		t.Errorf("draining: status %d, %q, close %v; want 503, SERVICE_UNAVAILABLE, true", resp.StatusCode, body, resp.Close)
	}
}

func TestServiceWithoutTokenRejectsForeignHosts(t *testing.T) {
	s := start(t, media.Options{MemoryBytes: 1 << 20}, nil)
	s.mustPut(blobURL, content)
	for host, want := range map[string]int{s.addr: 200, "localhost:3002": 200, "[::1]": 200, "rebound.example:3002": 403, "192.0.2.1": 403, "localhost.example": 403} {
		for range 2 { // the second could come from memory
			if status, body := s.raw("GET "+blobURL+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n", "GET"); status != want {
				t.Errorf("GET with Host %s: %d %s, want %d", host, status, body, want)
			}
		}
		put := "PUT /media/ab/x.pcm HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 1\r\n\r\nx"
		if status, body := s.raw(put, "PUT"); (status == 403) != (want == 403) {
			t.Errorf("PUT with Host %s: %d %s, want 403: %v", host, status, body, want == 403)
		}
	}
}

func TestClientConformsToBlobStore(t *testing.T) {
	s := start(t, media.Options{}, nil)
	c, err := media.NewClient("http://"+s.addr, "", nil)
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	speechtest.TestBlobStore(t, c)
}

func TestDeleteKeepsModifiedBlob(t *testing.T) {
	s := start(t, media.Options{}, nil)
	c, err := media.NewClient("http://"+s.addr, "", nil)
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	const path = "ab/abc.pcm"
	put := func() (version string) {
		testkit.Must(t, c.Put(t.Context(), path, []byte("audio")))
		_, version, err := c.Get(t.Context(), path)
		testkit.Must(t, err)
		return version
	}
	expect := func(what string, want bool) func(bool, error) {
		return func(gone bool, err error) {
			t.Helper()
			if err != nil || gone != want {
				t.Errorf("%s: gone %v, %v; want %v", what, gone, err, want)
			}
		}
	}
	first := put()
	second := put()
	expect("replaced version", false)(c.DeleteVersion(t.Context(), path, first))
	expect("current version", true)(c.DeleteVersion(t.Context(), path, second))
	expect("missing blob", true)(c.DeleteVersion(t.Context(), path, second))

	put()
	modified := time.Unix(1_800_000_000, 9e8)
	testkit.Must(t, os.Chtimes(filepath.Join(s.root, path), modified, modified))
	expect("modified later in the same second", false)(c.DeleteUnmodifiedSince(t.Context(), path, modified.Add(-time.Second/2)))
	expect("modified in the second before", true)(c.DeleteUnmodifiedSince(t.Context(), path, modified.Add(time.Second)))
}

// The root is often in DATA_DIR, which must not be readable by other users, and may be
// created first.
func TestOnlyOwnerCanReadFiles(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dataDir := filepath.Join(t.TempDir(), "data")
	s := openStore(t, filepath.Join(dataDir, "media"), 0)
	defer s.Close()
	put(t, s, "ab/abc.pcm", "audio")
	err := filepath.WalkDir(dataDir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, want none for group and others", path, info.Mode())
		}
		return err
	})
	testkit.Must(t, err)
}

func TestRenewedCertificateIsServed(t *testing.T) {
	first, second := testkit.NewCA(t), testkit.NewCA(t)
	dir := t.TempDir()
	_, certFile, keyFile := first.Files(t, dir, "localhost")
	var log testkit.Buffer
	certificate, err := media.LoadCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	testkit.Must(t, err)
	secure := config.ServerTLS()
	secure.GetCertificate = certificate.Get
	s := start(t, media.Options{MemoryBytes: 1 << 20}, secure)
	dial := func(ca *testkit.CA) error {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca.PEM())
		conn, err := tls.Dial("tcp", s.addr, &tls.Config{ServerName: "localhost", RootCAs: roots})
		if err == nil {
			conn.Close()
		}
		return err
	}
	// A renewal writes the certificate before its key.
	certPEM, keyPEM := second.Issue(t, "localhost")
	write := func(name string, content []byte) {
		t.Helper()
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	// awaitLog performs handshakes until another line with text is logged.
	awaitLog := func(text string) {
		t.Helper()
		before := strings.Count(log.String(), text)
		testkit.Until(t, text, func() bool {
			_, _ = certificate.Get(nil)
			return strings.Count(log.String(), text) > before
		})
	}
	write("cert.pem", certPEM)
	awaitLog("new certificate is invalid")
	testkit.NoError(t, "the previous certificate is not served", dial(first))
	write("key.pem", keyPEM)
	testkit.Until(t, "the new certificate is served", func() bool { return dial(second) == nil })

	// An invalid key is replaced by a valid one with the same size and modification
	// time.
	certPEM, keyPEM = first.Issue(t, "localhost")
	renewed := time.Now().Add(time.Minute)
	writeAt := func(key []byte) {
		t.Helper()
		write("cert.pem", certPEM)
		write("key.pem", key)
		for _, file := range []string{certFile, keyFile} {
			testkit.Must(t, os.Chtimes(file, renewed, renewed))
		}
	}
	writeAt(bytes.ToLower(keyPEM))
	awaitLog("new certificate is invalid")
	writeAt(keyPEM)
	testkit.Until(t, "the renewed certificate is served", func() bool { return dial(first) == nil })
}

// pipe is an in-memory connection without buffers.
type pipe struct{ net.Conn }

func (p pipe) CloseWrite() error { return p.Close() }

// A client that sends or reads very slowly can hold a connection for less than a
// minute with small blobs. Large ones get more time, at 64 KiB per second.
func TestSlowClientsAreDisconnected(t *testing.T) {
	const big = 1 << 20
	text := strings.Repeat("x", 4000)
	// drip sends prefix at once and then text, one byte per second.
	drip := func(c net.Conn, prefix, text string) {
		_, _ = io.WriteString(c, prefix)
		for i := range len(text) {
			if _, err := io.WriteString(c, text[i:i+1]); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
		_, _ = io.Copy(io.Discard, c)
	}
	for name, tt := range map[string]struct {
		memory int64         // of the cache
		within time.Duration // until the connection is closed
		client func(c net.Conn)
	}{
		"no request":  {0, 3 * time.Minute, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }},
		"slow header": {0, time.Minute, func(c net.Conn) { drip(c, "GET /media/ab/x.pcm HTTP/1.1\r\nX: ", text) }},
		"slow body": {0, time.Minute, func(c net.Conn) {
			drip(c, "PUT /media/ab/y.pcm HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n", text)
		}},
		"slow unread body": {0, time.Minute, func(c net.Conn) {
			drip(c, "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n", text)
		}},
		"missing body": {0, time.Minute, func(c net.Conn) {
			_, _ = io.WriteString(c, "PUT /media/ab/y.pcm HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil || resp.StatusCode != http.StatusBadRequest || !resp.Close {
				t.Errorf("response to a missing body: %v, %v; want status 400 and a closed connection", resp, err)
			}
		}},
		"stalled reader": {0, 2 * time.Minute, func(c net.Conn) {
			_, _ = io.WriteString(c, "GET /media/ab/x.pcm HTTP/1.1\r\nHost: localhost\r\n\r\n")
			time.Sleep(time.Hour)
		}},
		"stalled reader, from memory": {64 << 20, 2 * time.Minute, func(c net.Conn) {
			_, _ = io.WriteString(c, "GET /media/ab/x.pcm HTTP/1.1\r\nHost: localhost\r\n\r\n")
			time.Sleep(time.Hour)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			testkit.Must(t, os.MkdirAll(filepath.Join(root, "ab"), 0o755))
			testkit.Must(t, os.WriteFile(filepath.Join(root, "ab/x.pcm"), make([]byte, big), 0o644))
			synctest.Test(t, func(t *testing.T) {
				s, err := media.New(media.Options{Root: root, MaxObjectBytes: 16 << 20, MemoryBytes: tt.memory,
					Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
				testkit.Must(t, err)
				defer s.Close()
				l := make(testkit.PipeListener)
				served := make(chan error, 1)
				go func() { served <- s.Serve(l, nil) }()
				client, server := net.Pipe()
				conn := &closeRecorder{Conn: server, at: make(chan time.Time, 1)}
				start := time.Now()
				l <- pipe{conn}
				go tt.client(client)
				select {
				case at := <-conn.at:
					t.Logf("closed after %v", at.Sub(start))
				case <-time.After(tt.within):
					t.Errorf("connection still open after %v", tt.within)
				}
				client.Close()
				close(l)
				testkit.Must(t, s.Shutdown(t.Context()))
				<-served
				time.Sleep(2 * time.Hour) // until the clients are done
			})
			if files := filesBelow(t, root); !slices.Equal(files, []string{".lock", "ab/x.pcm"}) {
				t.Errorf("files %v, want .lock and ab/x.pcm", files)
			}
		})
	}
}

// closeRecorder records when the connection is closed.
type closeRecorder struct {
	net.Conn
	at chan time.Time
}

func (c *closeRecorder) Close() error {
	select {
	case c.at <- time.Now():
	default:
	}
	return c.Conn.Close()
}
