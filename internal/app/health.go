package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"telapi/internal/config"
)

const (
	healthTimeout  = 3 * time.Second
	maxHealthBytes = 64 << 10
)

// CheckHealth requests /health of the API server on this machine, or of the media
// service. It returns the server's URL, and the status and body of the response. The
// URL is set even if err is not nil.
func CheckHealth(ctx context.Context, cfg config.Config, media bool) (url string, status int, body []byte, err error) {
	host, port, scheme := cfg.Host, cfg.Port, cfg.APIScheme()
	if media {
		host, port, scheme = cfg.MediaHost, cfg.MediaPort, "http"
		if cfg.MediaTLSCertFile != "" {
			scheme = "https"
		}
	}
	url = scheme + "://" + net.JoinHostPort(cmp.Or(host, "127.0.0.1"), strconv.Itoa(port))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return url, 0, nil, fmt.Errorf("check health: %w", err)
	}
	// The certificate is for the public name, and the connection does not leave the machine.
	client := http.Client{Timeout: healthTimeout, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // loopback
	resp, err := client.Do(req)
	if err != nil {
		return url, 0, nil, fmt.Errorf("check health: %w", err)
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(io.LimitReader(resp.Body, maxHealthBytes))
	return url, resp.StatusCode, body, err
}
