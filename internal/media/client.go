// Package media makes and stores audio for package speech. It has the speech providers,
// which are services with the OpenAI speech API, the program espeak-ng and a built-in one
// that plays tones; the media service, which stores blobs on disk; and its client.
package media

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"go.opentelemetry.io/otel/propagation"

	"telapi/internal/background"
	"telapi/internal/redact"
	"telapi/internal/speech"
)

// Timeouts of the client. A streamed body has no overall timeout: a long
// recording may be read slowly.
const (
	dialTimeout    = 2 * time.Second
	headerTimeout  = 5 * time.Second
	stallTimeout   = 10 * time.Second // of one read of a streamed body
	requestTimeout = 30 * time.Second // of requests that are not streamed
)

const (
	maxFetchedBytes = 64 << 20 // of a blob that Get reads
	maxLine         = 4 << 10  // of a listing
	maxDrained      = 4 << 10  // of an unused body, to reuse the connection
)

var _ speech.BlobStore = (*Client)(nil)

// Client reads and writes blobs of the media service over pooled connections.
// It is safe for concurrent use. Its errors wrap speech.ErrBlobNotFound,
// speech.ErrBlobRejected (the service has no space or rejects the token) or
// speech.ErrBlobsUnavailable, unless the caller's context was cancelled.
type Client struct {
	base  *url.URL
	token redact.Secret
	http  *http.Client
}

// NewClient returns a client for the media service at base. The token may be
// empty. With nil roots the system's root certificates are used.
func NewClient(base string, token redact.Secret, roots *x509.CertPool) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("media base URL: %w", err)
	}
	if strings.ContainsFunc(token.Reveal(), func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return nil, errors.New("invalid upload token of the media service: remove white space and control characters")
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // a stalled HTTP/2 stream could block others on its connection
	return &Client{base: u, token: token, http: &http.Client{
		Transport: &http.Transport{ // without a proxy: the service is in the private network
			Protocols:             protocols,
			DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:   dialTimeout,
			ResponseHeaderTimeout: headerTimeout,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   64,
			DisableCompression:    true,
		},
		CheckRedirect: refuseRedirect,
	}}, nil
}

// refuseRedirect keeps a redirect from getting the token or key of a request.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Ping checks the health of the service.
func (c *Client) Ping(ctx context.Context) error {
	return c.call(ctx, http.MethodGet, c.base.JoinPath("health"), nil, nil, http.StatusOK)
}

// Fetch sends a GET or HEAD request for a blob with the given header and streams
// the response. Its status is 200, 206, 304, 412 or 416. The caller closes the
// body.
func (c *Client) Fetch(ctx context.Context, method, path string, header http.Header) (*http.Response, error) {
	ctx, watchdog := background.NewWatchdog(ctx, stallTimeout, fmt.Errorf("%w: no data for %v", speech.ErrBlobsUnavailable, stallTimeout))
	resp, err := c.do(ctx, method, c.blobURL(path), header, nil, http.StatusOK, http.StatusPartialContent,
		http.StatusNotModified, http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		watchdog.Stop()
		return nil, err
	}
	resp.Body = watchdog.Watch(resp.Body)
	return resp, nil
}

// Get implements speech.BlobStore.
func (c *Client) Get(ctx context.Context, path string) (content []byte, version string, err error) {
	resp, err := c.Fetch(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	if content, err = io.ReadAll(io.LimitReader(resp.Body, maxFetchedBytes)); err != nil {
		return nil, "", fmt.Errorf("read blob: %w", err)
	}
	return content, resp.Header.Get("ETag"), nil
}

// Exists implements speech.BlobStore.
func (c *Client) Exists(ctx context.Context, path string) (bool, error) {
	err := c.call(ctx, http.MethodHead, c.blobURL(path), nil, nil, http.StatusOK)
	if errors.Is(err, speech.ErrBlobNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Put implements speech.BlobStore.
func (c *Client) Put(ctx context.Context, path string, content []byte) error {
	return c.call(ctx, http.MethodPut, c.blobURL(path), nil, bytes.NewReader(content), http.StatusCreated, http.StatusNoContent)
}

// DeleteVersion implements speech.BlobStore.
func (c *Client) DeleteVersion(ctx context.Context, path, version string) (gone bool, err error) {
	return c.deleteIf(ctx, path, "If-Match", version)
}

// DeleteUnmodifiedSince implements speech.BlobStore. HTTP dates have no
// fractions of a second, so it also keeps blobs modified in the last second
// before the given time.
func (c *Client) DeleteUnmodifiedSince(ctx context.Context, path string, since time.Time) (gone bool, err error) {
	return c.deleteIf(ctx, path, "If-Unmodified-Since", since.Add(-time.Second).UTC().Format(http.TimeFormat))
}

func (c *Client) deleteIf(ctx context.Context, path, condition, value string) (gone bool, err error) {
	err = c.call(ctx, http.MethodDelete, c.blobURL(path), http.Header{condition: {value}}, nil, http.StatusNoContent)
	switch {
	case errors.Is(err, speech.ErrBlobNotFound):
		return true, nil
	case errors.Is(err, errModified):
		return false, nil
	}
	return err == nil, err
}

// List implements speech.BlobStore.
func (c *Client) List(ctx context.Context, after string, limit int) ([]speech.BlobInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	u := c.base.JoinPath("media")
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if after != "" {
		query.Set("after", after)
	}
	u.RawQuery = query.Encode()
	resp, err := c.do(ctx, http.MethodGet, u, nil, nil, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer closeBody(resp)
	blobs, err := readList(resp.Body, limit)
	if err != nil {
		return nil, unavailable(ctx, http.MethodGet, err)
	}
	return blobs, nil
}

func readList(body io.Reader, limit int) (blobs []speech.BlobInfo, err error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var blob speech.BlobInfo
		if err := json.Unmarshal(lines.Bytes(), &blob); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(blobs)+1, err)
		}
		if blobs = append(blobs, blob); len(blobs) > limit {
			return nil, fmt.Errorf("more than %d lines", limit)
		}
	}
	return blobs, lines.Err()
}

func (c *Client) blobURL(path string) *url.URL { return c.base.JoinPath("media", path) }

// call sends a request whose response has no content within requestTimeout.
func (c *Client) call(ctx context.Context, method string, u *url.URL, header http.Header, body io.Reader, want ...int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := c.do(ctx, method, u, header, body, want...)
	if err == nil {
		closeBody(resp)
	}
	return err
}

var errModified = errors.New("blob modified")

// do sends a request and returns a response with one of the wanted statuses.
func (c *Client) do(ctx context.Context, method string, u *url.URL, header http.Header, body io.Reader, want ...int) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("create media request: %w", err)
	}
	maps.Copy(req.Header, header)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(req.Header))
	// With this key, the transport retries PUT and DELETE if the service has closed
	// the pooled connection. A nil value is not sent. All requests are idempotent.
	req.Header["Idempotency-Key"] = nil
	isList := u.RawQuery != ""
	needsToken := isList || method == http.MethodPut || method == http.MethodDelete
	if c.token != "" && needsToken {
		req.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, unavailable(ctx, method, err)
	}
	if slices.Contains(want, resp.StatusCode) {
		return resp, nil
	}
	closeBody(resp)
	switch resp.StatusCode {
	case http.StatusNotFound:
		return nil, speech.ErrBlobNotFound
	case http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusInsufficientStorage:
		return nil, fmt.Errorf("%w: status %d", speech.ErrBlobRejected, resp.StatusCode)
	case http.StatusPreconditionFailed:
		return nil, errModified
	case http.StatusUnauthorized:
		return nil, fmt.Errorf("%w: invalid TTS_MEDIA_CACHE_UPLOAD_TOKEN", speech.ErrBlobRejected)
	}
	return nil, unavailable(ctx, method, fmt.Errorf("status %d", resp.StatusCode))
}

func unavailable(ctx context.Context, method string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) && !errors.Is(context.Cause(ctx), speech.ErrBlobsUnavailable) { // by the caller
		return fmt.Errorf("%s blob: %w", method, ctx.Err())
	}
	return fmt.Errorf("%w: %s: %w", speech.ErrBlobsUnavailable, method, err)
}

// closeBody reads the rest of a small body, so that its connection is reused.
func closeBody(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, maxDrained)
	_ = resp.Body.Close()
}
