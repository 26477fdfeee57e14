package media_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"log/slog"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/media"
	"telapi/internal/redact"
	"telapi/test/leaks"
	"telapi/test/testkit"
)

const (
	blobURL = "/media/ab/greeting.alaw"
	content = "0123456789abcdefghij"
)

// Responses must not depend on whether the fast path is enabled.
func TestRangesAndConditions(t *testing.T) {
	for name, memory := range map[string]int64{"from memory": 1 << 20, "from disk": 0} {
		t.Run(name, func(t *testing.T) {
			s := start(t, media.Options{MemoryBytes: memory, UploadTokens: tokens(token)}, nil)
			tag := s.mustPut(blobURL, content)
			s.do("GET", blobURL, "") // load it into the cache
			resp, _ := s.do("HEAD", blobURL, "")
			modified := resp.Header.Get("Last-Modified")
			when, err := http.ParseTime(modified)
			if err != nil {
				t.Fatalf("Last-Modified %q: %v", modified, err)
			}
			before, after := when.Add(-time.Hour).Format(http.TimeFormat), when.Add(time.Hour).Format(http.TimeFormat)
			for _, tt := range []struct {
				name         string
				method       string
				header       []string
				status       int
				body         string
				contentRange string
			}{
				{"whole blob", "GET", nil, 200, content, ""},
				{"HEAD", "HEAD", nil, 200, "", ""},
				{"a range", "GET", []string{"Range", "bytes=2-4"}, 206, "234", "bytes 2-4/20"},
				{"a range to the end", "GET", []string{"Range", "bytes=15-"}, 206, "fghij", "bytes 15-19/20"},
				{"a suffix", "GET", []string{"Range", "bytes=-3"}, 206, "hij", "bytes 17-19/20"},
				{"a range after the end", "GET", []string{"Range", "bytes=20-"}, 416, "RANGE_NOT_SATISFIABLE", "bytes */20"},
				{"a range of another unit", "GET", []string{"Range", "lines=1-2"}, 200, content, ""},
				{"an invalid range", "GET", []string{"Range", "bytes=4-2"}, 416, "RANGE_NOT_SATISFIABLE", ""},
				{"HEAD with a range", "HEAD", []string{"Range", "bytes=2-4"}, 200, "", ""},
				{"If-None-Match with its tag", "GET", []string{"If-None-Match", tag}, 304, "", ""},
				{"If-None-Match with another tag", "GET", []string{"If-None-Match", `"x"`}, 200, content, ""},
				{"If-Modified-Since at its date", "GET", []string{"If-Modified-Since", modified}, 304, "", ""},
				{"If-Modified-Since earlier", "GET", []string{"If-Modified-Since", before}, 200, content, ""},
				{"If-Match with its tag", "GET", []string{"If-Match", tag}, 200, content, ""},
				{"If-Match with another tag", "GET", []string{"If-Match", `"x"`}, 412, "PRECONDITION_FAILED", ""},
				{"If-Unmodified-Since later", "GET", []string{"If-Unmodified-Since", after}, 200, content, ""},
				{"If-Unmodified-Since earlier", "GET", []string{"If-Unmodified-Since", before}, 412, "PRECONDITION_FAILED", ""},
				{"If-Range with its tag", "GET", []string{"If-Range", tag, "Range", "bytes=2-4"}, 206, "234", "bytes 2-4/20"},
				{"If-Range with another tag", "GET", []string{"If-Range", `"x"`, "Range", "bytes=2-4"}, 200, content, ""},
			} {
				resp, body := s.do(tt.method, blobURL, "", tt.header...)
				if resp.StatusCode != tt.status || !strings.Contains(body, tt.body) || tt.body == "" && body != "" ||
					tt.contentRange != "" && resp.Header.Get("Content-Range") != tt.contentRange {
					t.Errorf("%s: %d %q, Content-Range %q, want %d %q %q", tt.name,
						resp.StatusCode, body, resp.Header.Get("Content-Range"), tt.status, tt.body, tt.contentRange)
				}
				cacheControl := "private, max-age=31536000, immutable"
				if resp.StatusCode >= 400 {
					cacheControl = "no-store"
				}
				if resp.Header.Get("Cache-Control") != cacheControl || resp.StatusCode < 400 && resp.Header.Get("Etag") != tag {
					t.Errorf("%s: header %v, want Cache-Control %q and ETag %s", tt.name, resp.Header, cacheControl, tag)
				}
			}
		})
	}
}

func TestMultipleRanges(t *testing.T) {
	s := start(t, media.Options{}, nil)
	s.mustPut(blobURL, content)
	resp, body := s.do("GET", blobURL, "", "Range", "bytes=0-1,-2")
	kind, params, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/byteranges" || resp.StatusCode != http.StatusPartialContent {
		t.Fatalf("status %d, type %s, %v; want 206 with multipart/byteranges", resp.StatusCode, kind, err)
	}
	parts := multipart.NewReader(strings.NewReader(body), params["boundary"])
	for _, want := range []string{"bytes 0-1/20 audio/x-alaw-basic 01", "bytes 18-19/20 audio/x-alaw-basic ij"} {
		part, err := parts.NextPart()
		testkit.Must(t, err)
		text, _ := io.ReadAll(part)
		testkit.Equal(t, "part", part.Header.Get("Content-Range")+" "+part.Header.Get("Content-Type")+" "+string(text), want)
	}
}

func TestPutAndDelete(t *testing.T) {
	s := start(t, media.Options{UploadTokens: tokens(token, "previous-token"), MetricsToken: "metrics-token", MaxObjectBytes: 100, MemoryBytes: 1 << 20}, nil)
	tag := s.mustPut(blobURL, content)
	bearer := []string{"Authorization", "Bearer " + token}
	with := func(more ...string) []string { return append(more, bearer...) }
	const missing = "/media/ab/missing.pcm"
	for _, tt := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		want                     string
	}{
		{"no token", "PUT", blobURL, "x", nil, 401, "UNAUTHORIZED"},
		{"a wrong token", "PUT", blobURL, "x", []string{"Authorization", "Bearer x"}, 401, "UNAUTHORIZED"},
		{"a token of another scheme", "PUT", blobURL, "x", []string{"Authorization", "Basic " + token}, 401, "UNAUTHORIZED"},
		{"two tokens", "PUT", blobURL, "x", with("Authorization", "Bearer x"), 401, "UNAUTHORIZED"},
		{"delete without a token", "DELETE", blobURL, "", nil, 401, "UNAUTHORIZED"},
		{"an invalid path without a token", "PUT", "/media/x", "x", nil, 401, "UNAUTHORIZED"},
		{"put to an invalid path", "PUT", "/media/ab/x.wav", "x", bearer, 400, "VALIDATION_ERROR"},
		{"put elsewhere", "PUT", "/elsewhere", "x", bearer, 400, "VALIDATION_ERROR"},
		{"put to the listing", "PUT", "/media", "x", bearer, 400, "VALIDATION_ERROR"},
		{"delete of an invalid path", "DELETE", "/media/ab/x.wav", "", bearer, 404, "NOT_FOUND"},
		{"get of an invalid path", "GET", "/media/ab/x.wav", "", nil, 404, "NOT_FOUND"},
		{"get of a missing blob", "GET", missing, "", nil, 404, "NOT_FOUND"},
		{"delete of a missing blob", "DELETE", missing, "", bearer, 404, "NOT_FOUND"},
		{"post", "POST", blobURL, "x", bearer, 405, "METHOD_NOT_ALLOWED"},
		{"delete of health", "DELETE", "/health", "", bearer, 405, "METHOD_NOT_ALLOWED"},
		{"too large", "PUT", blobURL, strings.Repeat("x", 101), bearer, 413, "PAYLOAD_TOO_LARGE"},
		{"a partial upload", "PUT", blobURL, "x", with("Content-Range", "bytes 0-0/20"), 400, "Content-Range"},
		{"replace a missing blob", "PUT", missing, "x", with("If-Match", "*"), 412, "PRECONDITION_FAILED"},
		{"replace another version", "PUT", blobURL, "x", with("If-Match", `"x"`), 412, "PRECONDITION_FAILED"},
		{"create an existing blob", "PUT", blobURL, "x", with("If-None-Match", "*"), 412, "PRECONDITION_FAILED"},
		{"delete another version", "DELETE", blobURL, "", with("If-Match", `"x"`), 412, "PRECONDITION_FAILED"},
		{"delete a modified blob", "DELETE", blobURL, "", with("If-Unmodified-Since", "Thu, 01 Jan 2015 00:00:00 GMT"), 412, "PRECONDITION_FAILED"},
		{"unchanged", "GET", blobURL, "", nil, 200, content},
		{"replace", "PUT", blobURL, "second", with("If-Match", tag), 204, ""},
		{"replaced", "GET", blobURL, "", nil, 200, "second"},
		{"previous token", "PUT", blobURL, "third", []string{"Authorization", "bearer previous-token"}, 204, ""},
		{"create", "PUT", missing, "new", with("If-None-Match", "*"), 201, ""},
		{"empty blob", "PUT", "/media/ab/empty.pcm", "", with("Content-Length", "0"), 201, ""},
		{"delete", "DELETE", blobURL, "", with("If-Match", "*"), 204, ""},
		{"deleted", "GET", blobURL, "", nil, 404, "NOT_FOUND"},
		{"a listing without the token", "GET", "/media", "", nil, 404, "NOT_FOUND"},
		{"a listing", "GET", "/media?after=ab/empty.pcm&limit=5", "", bearer, 200, `{"path":"ab/missing.pcm","bytes":3,`},
		{"a listing with an invalid limit", "GET", "/media?limit=0", "", bearer, 400, "limit"},
		{"health", "GET", "/health", "", nil, 200, "ok"},
		{"metrics without a token", "GET", "/metrics", "", nil, 401, "UNAUTHORIZED"},
		{"metrics with another token", "GET", "/metrics", "", bearer, 401, "UNAUTHORIZED"},
		{"metrics", "GET", "/metrics", "", []string{"Authorization", "Bearer metrics-token"}, 200, "telapi_media_store_objects 2"},
	} {
		resp, body := s.do(tt.method, tt.path, tt.body, tt.header...)
		if resp.StatusCode != tt.status || !strings.Contains(body, tt.want) {
			t.Errorf("%s: %d %s, want %d %s", tt.name, resp.StatusCode, body, tt.status, tt.want)
		}
		if allow := resp.Header.Get("Allow"); (resp.StatusCode == 405) != (allow != "") {
			t.Errorf("%s: status %d with Allow %q, want Allow only with 405", tt.name, resp.StatusCode, allow)
		}
		if id := resp.Header.Get("X-Request-Id"); resp.StatusCode >= 400 && (id == "" || !strings.Contains(body, `"requestId":"`+id+`"`)) {
			t.Errorf("%s: X-Request-Id %q, want the ID in %s", tt.name, id, body)
		}
		if strings.Contains(body, token) {
			t.Errorf("%s: the response contains the token", tt.name)
		}
	}
	for request, want := range map[string]string{
		"GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n":                       "VALIDATION_ERROR",
		"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: more\r\n\r\n":          "EXPECTATION_FAILED",
		"PUT /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: a\r\n\r\n": "NOT_IMPLEMENTED",
		"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n":                          "HTTP_VERSION_NOT_SUPPORTED",
	} {
		if status, body := s.raw(request, "GET"); !strings.Contains(body, want) {
			t.Errorf("%q: %d %s, want %s", request, status, body, want)
		}
	}
	for name, request := range map[string]string{
		"no length":     "PUT /media/ab/x.pcm HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\n\r\n",
		"chunks":        "PUT /media/ab/x.pcm HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
		"chunks, empty": "PUT /media/ab/x.pcm HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	} {
		if status, body := s.raw(request, "PUT"); status != 411 || !strings.Contains(body, "LENGTH_REQUIRED") {
			t.Errorf("%s: status %d, want 411 LENGTH_REQUIRED: %s", name, status, body)
		}
	}
	// Content-Length is checked before the body is sent.
	if status, _ := s.raw("PUT /media/ab/x.pcm HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "+token+"\r\nContent-Length: 101\r\n\r\n", "PUT"); status != 413 {
		t.Errorf("too large Content-Length: status %d, want 413", status)
	}
}

func TestMain(m *testing.M) { leaks.Main(m) }

// token is the upload token, if a service requires one.
const token = "the-upload-token"

// service is a running media service.
type service struct {
	t      *testing.T
	addr   string
	root   string
	client *http.Client
	drain  func()
	stop   func() // shuts down the service; may be called twice
}

// start runs a service until the test ends. Zero options get defaults.
func start(t *testing.T, o media.Options, secure *tls.Config) *service {
	t.Helper()
	if o.Root == "" {
		o.Root = t.TempDir()
	}
	if o.MaxObjectBytes == 0 {
		o.MaxObjectBytes = 1 << 20
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s, err := media.New(o)
	testkit.Must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l, secure) }()
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	stopped := false
	run := &service{t: t, addr: l.Addr().String(), root: o.Root, client: &http.Client{Transport: transport}, drain: s.Drain}
	run.stop = func() {
		if stopped {
			return
		}
		stopped = true
		transport.CloseIdleConnections()
		if err := s.Shutdown(t.Context()); err != nil && t.Context().Err() == nil {
			t.Errorf("shut down: %v", err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		s.Close()
	}
	t.Cleanup(run.stop)
	return run
}

// do sends a request. Header lists names and values alternately.
func (s *service) do(method, path, body string, header ...string) (*http.Response, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.addr+path, strings.NewReader(body))
	testkit.Must(s.t, err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	testkit.Must(s.t, err)
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	testkit.Must(s.t, err)
	return resp, string(got)
}

// mustPut stores a blob and returns its ETag.
func (s *service) mustPut(path, body string) string {
	s.t.Helper()
	if resp, text := s.do("PUT", path, body, "Authorization", "Bearer "+token); resp.StatusCode/100 != 2 {
		s.t.Fatalf("PUT %s: %d %s", path, resp.StatusCode, text)
	}
	resp, _ := s.do("HEAD", path, "")
	return resp.Header.Get("Etag")
}

// raw sends bytes and reads one response. The status is 0 if there is none.
func (s *service) raw(request, method string) (status int, body string) {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	testkit.Must(s.t, err)
	defer conn.Close()
	_, _ = io.WriteString(conn, request)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func tokens(list ...string) (secrets []redact.Secret) {
	for _, s := range list {
		secrets = append(secrets, redact.Secret(s))
	}
	return secrets
}
