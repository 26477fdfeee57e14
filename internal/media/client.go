// Package media owns the cache of generated speech: the client through which
// the API server reaches the private media service.
package media

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Client reaches the media service over pooled connections.
type Client struct {
	base *url.URL
	http *http.Client
}

// NewClient returns a client for the media service at base. Roots may be nil:
// then the system's are used.
func NewClient(base string, roots *x509.CertPool) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("media base URL: %w", err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	transport.Proxy = nil // a private service is never behind a forward proxy
	transport.MaxIdleConnsPerHost = 64
	return &Client{base: u, http: &http.Client{Transport: transport, Timeout: 30 * time.Second}}, nil
}

// Ping asks the service for its health.
func (c *Client) Ping(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath("health").String(), nil)
	if err != nil {
		return fmt.Errorf("ask media health: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("ask media health: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection is used again
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask media health: status %d", resp.StatusCode)
	}
	return nil
}

// Close ends the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }
