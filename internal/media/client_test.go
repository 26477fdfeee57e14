package media

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/redact"
	"telapi/internal/speech"
	"telapi/test/testkit"
)

// client returns a client of a service with the given handler.
func client(t *testing.T, handle http.HandlerFunc) (*Client, *httptest.Server) {
	t.Helper()
	server := httptest.NewTLSServer(handle)
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	c, err := NewClient(server.URL+"/base/", "upload-token", roots)
	testkit.Must(t, err)
	t.Cleanup(c.Close)
	return c, server
}

func TestClientSendsRequests(t *testing.T) {
	var got string
	c, _ := client(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var conditions []string
		for _, name := range []string{"Range", "If-Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"} {
			conditions = append(conditions, r.Header[name]...)
		}
		got = fmt.Sprintf("%s %s auth=%q conditions=%v body=%q", r.Method, r.URL, r.Header.Get("Authorization"), conditions, body)
		w.WriteHeader(map[string]int{"GET": 200, "PUT": 201, "DELETE": 204}[r.Method])
	})
	for _, tt := range []struct {
		name string
		call func(ctx context.Context) error
		want string
	}{
		{"get", func(ctx context.Context) error {
			resp, err := c.Fetch(ctx, http.MethodGet, "ab/abc.alaw", http.Header{"Range": {"bytes=0-9"}, "If-Range": {"a"}, "If-Match": {"b"},
				"If-None-Match": {"c"}, "If-Modified-Since": {"d"}, "If-Unmodified-Since": {"e"}})
			if err == nil {
				err = resp.Body.Close()
			}
			return err
		}, `GET /base/media/ab/abc.alaw auth="" conditions=[bytes=0-9 a b c d e] body=""`},
		{"put", func(ctx context.Context) error { return c.Put(ctx, "ab/abc.pcm", []byte("audio")) },
			`PUT /base/media/ab/abc.pcm auth="Bearer upload-token" conditions=[] body="audio"`},
		{"delete version", func(ctx context.Context) error { _, err := c.DeleteVersion(ctx, "ab/abc.pcm", `"tag"`); return err },
			`DELETE /base/media/ab/abc.pcm auth="Bearer upload-token" conditions=["tag"] body=""`},
		{"delete unmodified", func(ctx context.Context) error {
			_, err := c.DeleteUnmodifiedSince(ctx, "ab/abc.pcm", time.Unix(2, 999e6))
			return err
		}, `DELETE /base/media/ab/abc.pcm auth="Bearer upload-token" conditions=[Thu, 01 Jan 1970 00:00:01 GMT] body=""`},
		{"list", func(ctx context.Context) error { _, err := c.List(ctx, "ab/x y.pcm", 7); return err },
			`GET /base/media?after=ab%2Fx+y.pcm&limit=7 auth="Bearer upload-token" conditions=[] body=""`},
		{"health", c.Ping, `GET /base/health auth="" conditions=[] body=""`},
	} {
		if err := tt.call(t.Context()); err != nil || got != tt.want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", tt.name, err, got, tt.want)
		}
	}
}

func TestClientMapsErrors(t *testing.T) {
	status := 0
	c, server := client(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			t.Error("the redirect was followed")
		}
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(status)
	})
	calls := map[string]func(ctx context.Context) error{
		"get":  func(ctx context.Context) error { _, _, err := c.Get(ctx, "ab/abc.pcm"); return err },
		"put":  func(ctx context.Context) error { return c.Put(ctx, "ab/abc.pcm", nil) },
		"list": func(ctx context.Context) error { _, err := c.List(ctx, "", 1); return err },
	}
	expect := func(situation string, want error) {
		t.Helper()
		for name, call := range calls {
			if err := call(t.Context()); !errors.Is(err, want) || strings.Contains(err.Error(), "upload-token") {
				t.Errorf("%s, %s: %v, want %v", situation, name, err, want)
			}
		}
	}
	for status = range map[int]bool{302: true, 400: true, 500: true, 502: true, 503: true} {
		expect(fmt.Sprint("status ", status), speech.ErrBlobsUnavailable)
	}
	for status = range map[int]bool{401: true, 409: true, 413: true, 507: true} {
		expect(fmt.Sprint("status ", status), speech.ErrBlobRejected)
	}
	status = 404
	expect("not found", speech.ErrBlobNotFound)

	c.http.Transport.(*http.Transport).TLSClientConfig.RootCAs = x509.NewCertPool()
	c.Close()
	expect("unknown certificate", speech.ErrBlobsUnavailable)
	server.Close()
	expect("service down", speech.ErrBlobsUnavailable)

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Ping(cancelled); !errors.Is(err, context.Canceled) || errors.Is(err, speech.ErrBlobsUnavailable) {
		t.Errorf("cancelled caller: %v, want only context.Canceled", err)
	}
}

func TestClientParsesList(t *testing.T) {
	body := ""
	c, _ := client(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) })
	body = `{"path":"ab/abc.pcm","bytes":3,"modifiedAt":"2026-11-15T01:02:03Z"}` + "\n" + `{"path":"ac/x.alaw","bytes":0,"modifiedAt":"1970-01-01T00:00:00Z","new":1}` + "\n"
	want := []speech.BlobInfo{
		{Path: "ab/abc.pcm", Bytes: 3, ModifiedAt: time.Date(2026, 11, 15, 1, 2, 3, 0, time.UTC)},
		{Path: "ac/x.alaw", ModifiedAt: time.Unix(0, 0).UTC()}}
	if got, err := c.List(t.Context(), "", 2); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("listed %+v, %v; want %+v", got, err, want)
	}
	testkit.WantError(t, "too many lines", testkit.ErrorOf(c.List(t.Context(), "", 1)), speech.ErrBlobsUnavailable)
	for _, body = range []string{"<html>", `{"path":1}`, "{}\n{", `{"path":"` + strings.Repeat("x", maxLine)} {
		if got, err := c.List(t.Context(), "", 9); !errors.Is(err, speech.ErrBlobsUnavailable) {
			t.Errorf("%.20s: %+v, %v; want ErrBlobsUnavailable", body, got, err)
		}
	}
}

// pipeClient connects over pipes, which work in a synctest bubble.
func pipeClient(t *testing.T, handle http.HandlerFunc) *Client {
	c, err := NewClient("http://media", "", nil)
	testkit.Must(t, err)
	c.http.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		here, there := net.Pipe()
		conns := make(testkit.PipeListener, 1)
		conns <- there
		close(conns)
		go func() { _ = (&http.Server{Handler: handle}).Serve(conns) }()
		return here, nil
	}
	return c
}

func TestStreamTimesOutOnlyWhenStalled(t *testing.T) {
	for name, tt := range map[string]struct {
		pause time.Duration // between writes of the service
		slow  time.Duration // between reads of the client
		want  error
	}{
		"long recording, slow network": {stallTimeout - time.Second, 0, nil},
		"slow reader":                  {0, time.Hour, nil},
		"stalled service":              {time.Hour, 0, speech.ErrBlobsUnavailable},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			c := pipeClient(t, func(w http.ResponseWriter, r *http.Request) {
				for range 20 {
					if _, err := w.Write(make([]byte, 8<<10)); err != nil {
						return
					}
					w.(http.Flusher).Flush()
					select {
					case <-time.After(tt.pause):
					case <-r.Context().Done():
						return
					}
				}
			})
			defer c.Close()
			resp, err := c.Fetch(t.Context(), http.MethodGet, "ab/abc.pcm", nil)
			testkit.Must(t, err)
			defer resp.Body.Close()
			n, buffer := 0, make([]byte, 8<<10)
			for err == nil {
				time.Sleep(tt.slow)
				var m int
				m, err = resp.Body.Read(buffer)
				n += m
			}
			switch {
			case tt.want != nil && !errors.Is(err, tt.want):
				t.Errorf("read: %v, want %v", err, tt.want)
			case tt.want == nil && (!errors.Is(err, io.EOF) || n != 20*8<<10):
				t.Errorf("read %d bytes, %v; want %d and EOF", n, err, 20*8<<10)
			}
		})
	}
}

func TestStalledServiceTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pipeClient(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		defer c.Close()
		start := time.Now()
		if _, _, err := c.Get(t.Context(), "ab/abc.pcm"); !errors.Is(err, speech.ErrBlobsUnavailable) || time.Since(start) > headerTimeout {
			t.Errorf("error %v after %v, want ErrBlobsUnavailable after %v", err, time.Since(start), headerTimeout)
		}
	})
}

func TestStalledErrorIsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := pipeClient(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		defer c.Close()
		if _, err := c.Fetch(t.Context(), http.MethodGet, "ab/abc.pcm", nil); !errors.Is(err, speech.ErrBlobsUnavailable) {
			t.Errorf("error %v, want ErrBlobsUnavailable", err)
		}
	})
}

func TestInvalidTokenIsRejected(t *testing.T) {
	for _, token := range []string{"with\nbreak", "trailing\n", "two words", "nul\x00"} {
		if _, err := NewClient("https://media", redact.Secret(token), nil); err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("token %q: error %v, want one without the token", token, err)
		}
	}
}
