package media

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"telapi/internal/speech"
)

const maxLine = 4 << 10 // of a listing, and of what is read of an answer nobody wants

// errChanged is a blob that was stored anew since the moment that was given.
var errChanged = errors.New("the blob is another one by now")

// request asks with the token where there is one. All that is asked may be asked
// twice, so a pooled connection that turns out to be closed is no failure.
func (c *Client) request(ctx context.Context, method string, u *url.URL, body io.Reader) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("ask the media service: %w", err)
	}
	req.Header["Idempotency-Key"] = nil // heeded by the transport and not sent
	reading := (method == http.MethodGet || method == http.MethodHead) && u.RawQuery == ""
	if c.token != "" && !reading {
		req.Header.Set("Authorization", "Bearer "+c.token.Reveal())
	}
	return req, nil
}

// ask has an answer read within a bounded time.
func (c *Client) ask(ctx context.Context, method string, u *url.URL, header http.Header, body io.Reader, read func(io.Reader) error, want ...int) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := c.request(ctx, method, u, body)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, header)
	resp, err := c.do(req, want...)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if read == nil {
		read = drain
	}
	if err := read(resp.Body); err != nil {
		return away(ctx, method, err)
	}
	return nil
}

// do returns an answer whose status is one of those wanted.
func (c *Client) do(req *http.Request, want ...int) (*http.Response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, away(req.Context(), req.Method, err)
	}
	if slices.Contains(want, resp.StatusCode) {
		return resp, nil
	}
	_ = drain(resp.Body)
	_ = resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNotFound:
		return nil, speech.ErrBlobNotFound
	case http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusInsufficientStorage:
		return nil, fmt.Errorf("%w: status %d", speech.ErrBlobRejected, resp.StatusCode)
	case http.StatusPreconditionFailed:
		return nil, errChanged
	case http.StatusUnauthorized:
		return nil, fmt.Errorf("%w with the token of TTS_MEDIA_CACHE_UPLOAD_TOKEN", speech.ErrBlobRejected)
	}
	return nil, away(req.Context(), req.Method, fmt.Errorf("status %d", resp.StatusCode))
}

func away(ctx context.Context, method string, err error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("%s a blob: %w", method, ctx.Err())
	}
	return fmt.Errorf("%w: %s: %w", speech.ErrBlobsUnavailable, method, err)
}

// drain reads what is left of a small body, so that its connection is used
// again.
func drain(body io.Reader) error {
	_, _ = io.CopyN(io.Discard, body, maxLine)
	return nil
}

func eachLine(body io.Reader, limit int, take func([]byte) error) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for n := 0; lines.Scan(); n++ {
		if n == limit {
			return fmt.Errorf("more than the %d lines asked for", limit)
		}
		if err := take(lines.Bytes()); err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	return lines.Err()
}

// stream is a body that is given up when nothing comes for a while. Only the
// time inside Read counts: a caller who reads slowly is none of its business.
type stream struct {
	io.ReadCloser
	cancel context.CancelFunc
	stall  time.Duration
}

func (s *stream) Read(p []byte) (int, error) {
	watch := time.AfterFunc(s.stall, s.cancel)
	n, err := s.ReadCloser.Read(p)
	if !watch.Stop() && err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: nothing came for %v", speech.ErrBlobsUnavailable, s.stall)
	}
	return n, err
}

func (s *stream) Close() error {
	defer s.cancel()
	return s.ReadCloser.Close()
}
