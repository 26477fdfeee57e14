// Package media owns the cache of generated speech: the private media service
// with its store on disk, and the client through which the API server reaches
// it. One rule for paths (path.go) holds for both.
package media

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/redact"
	"telapi/internal/speech"
)

// How long the service may take. What is streamed from it has no bound as a
// whole: a long recording on a slow line is no fault.
const (
	dialTimeout    = 2 * time.Second
	headerTimeout  = 5 * time.Second
	stallTimeout   = 10 * time.Second // without a byte of a body that is being read
	requestTimeout = 30 * time.Second // of everything that is not streamed
)

var _ speech.BlobStore = (*Client)(nil)

// described are the headers of an answer that a reader of audio needs.
var described = []string{"Content-Length", "Content-Range", "Content-Type", "ETag", "Last-Modified", "Accept-Ranges", "Cache-Control"}

// Client reaches the media service over pooled connections. A blob that is not
// there is speech.ErrBlobNotFound, and what the service will not change, for want of room
// or of the right token, speech.ErrBlobRejected; whatever else keeps it from doing
// what was asked is speech.ErrBlobsUnavailable with the reason.
type Client struct {
	base  *url.URL
	token redact.Secret
	http  *http.Client
	stall time.Duration
}

// NewClient returns a client for the media service at base. Token may be empty.
// Roots may be nil: then the system's are used.
func NewClient(base string, token redact.Secret, roots *x509.CertPool) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("media base URL: %w", err)
	}
	if strings.ContainsFunc(token.Reveal(), func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return nil, errors.New("the media service's upload token contains white space or control characters, which no HTTP header can carry")
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // audio shares no connection: one that stalls holds up nobody else
	return &Client{base: u, token: token, stall: stallTimeout, http: &http.Client{
		Transport: &http.Transport{ // without a proxy: a private service is behind none
			Protocols:             protocols,
			DialContext:           (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:   dialTimeout,
			ResponseHeaderTimeout: headerTimeout,
			IdleConnTimeout:       90 * time.Second,
			MaxIdleConnsPerHost:   64,
			DisableCompression:    true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token goes nowhere else
	}}, nil
}

// Get implements speech.BlobStore.
func (c *Client) Get(ctx context.Context, path string, ask speech.Conditions) (speech.Blob, error) {
	method := http.MethodGet
	if ask.Head {
		method = http.MethodHead
	}
	ctx, cancel := context.WithCancel(ctx)
	req, err := c.request(ctx, method, c.base.JoinPath("media", path), nil)
	if err != nil {
		cancel()
		return speech.Blob{}, err
	}
	for name, value := range map[string]string{
		"Range": ask.Range, "If-Range": ask.IfRange, "If-Match": ask.IfMatch, "If-None-Match": ask.IfNoneMatch,
		"If-Modified-Since": ask.IfModifiedSince, "If-Unmodified-Since": ask.IfUnmodifiedSince,
	} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := c.do(req, http.StatusOK, http.StatusPartialContent, //nolint:bodyclose // the caller does, as the blob's
		http.StatusNotModified, http.StatusPreconditionFailed, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		cancel()
		return speech.Blob{}, err
	}
	blob := speech.Blob{Status: resp.StatusCode, Headers: map[string]string{}, Body: &stream{resp.Body, cancel, c.stall}}
	for _, name := range described {
		if value := resp.Header.Get(name); value != "" {
			blob.Headers[name] = value
		}
	}
	return blob, nil
}

// Put implements speech.BlobStore.
func (c *Client) Put(ctx context.Context, path string, content []byte) error {
	return c.ask(ctx, http.MethodPut, c.base.JoinPath("media", path), nil, bytes.NewReader(content), nil, http.StatusCreated, http.StatusNoContent)
}

// DeleteIfMatch implements speech.BlobStore.
func (c *Client) DeleteIfMatch(ctx context.Context, path, etag string) (gone bool, err error) {
	return c.deleteIf(ctx, path, "If-Match", etag)
}

// DeleteUnmodifiedSince implements speech.BlobStore. Dates have no fractions: what was
// stored in the last second before the moment may be younger, and stays too.
func (c *Client) DeleteUnmodifiedSince(ctx context.Context, path string, since time.Time) (gone bool, err error) {
	return c.deleteIf(ctx, path, "If-Unmodified-Since", since.Add(-time.Second).UTC().Format(http.TimeFormat))
}

func (c *Client) deleteIf(ctx context.Context, path, condition, value string) (gone bool, err error) {
	err = c.ask(ctx, http.MethodDelete, c.base.JoinPath("media", path), http.Header{condition: {value}}, nil, nil, http.StatusNoContent)
	switch {
	case errors.Is(err, speech.ErrBlobNotFound):
		return true, nil
	case errors.Is(err, errChanged):
		return false, nil
	}
	return err == nil, err
}

// List returns the blobs whose paths come after one ("" is the beginning), in
// order of path, limit at the most. There are no more where it returns none.
func (c *Client) List(ctx context.Context, after string, limit int) (blobs []speech.BlobInfo, err error) {
	u := c.base.JoinPath("media")
	u.RawQuery = url.Values{"after": {after}, "limit": {strconv.Itoa(limit)}}.Encode()
	err = c.ask(ctx, http.MethodGet, u, nil, nil, func(body io.Reader) error {
		return eachLine(body, limit, func(line []byte) error {
			var next speech.BlobInfo
			if err := json.Unmarshal(line, &next); err != nil {
				return err
			}
			blobs = append(blobs, next)
			return nil
		})
	}, http.StatusOK)
	return blobs, err
}

// Ping asks the service for its health.
func (c *Client) Ping(ctx context.Context) error {
	return c.ask(ctx, http.MethodGet, c.base.JoinPath("health"), nil, nil, nil, http.StatusOK)
}

// Close ends the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
