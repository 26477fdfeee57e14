package media_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/media"
)

// pipes is a listener for pipes. They have no buffers, and their deadlines follow
// the clock of a synctest bubble.
type pipes chan net.Conn

type pipe struct{ net.Conn }

func (p pipe) CloseWrite() error { return p.Close() }

func (l pipes) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l pipes) Close() error   { close(l); return nil }
func (l pipes) Addr() net.Addr { return &net.TCPAddr{} }

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
			if err := os.MkdirAll(filepath.Join(root, "ab"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "ab/x.pcm"), make([]byte, big), 0o644); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				s, err := media.New(media.Options{Root: root, MaxObjectBytes: 16 << 20, MemoryBytes: tt.memory,
					Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				l := make(pipes)
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
				if err := s.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
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

func TestTruncatedBodyStoresNothing(t *testing.T) {
	s := start(t, media.Options{}, nil)
	s.mustPut("/media/ab/x.pcm", "first")
	for cut := range 6 {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "PUT /media/ab/x.pcm HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\n%s", "second"[:cut])
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != 400 {
			t.Errorf("body truncated after %d bytes: %v, %v; want status 400", cut, resp, err)
		}
		conn.Close()
		if _, body := s.do("GET", "/media/ab/x.pcm", ""); body != "first" {
			t.Errorf("body truncated after %d bytes: stored %q, want the first upload", cut, body)
		}
	}
	if files := filesBelow(t, s.root); !slices.Equal(files, []string{".lock", "ab/x.pcm"}) {
		t.Errorf("files %v, want .lock and ab/x.pcm", files)
	}
}
