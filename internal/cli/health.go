package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (c *cli) healthCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "health",
		GroupID: groupLook,
		Short:   "Ask the server on this machine for its health",
		Long: `Asks /health of the API server that listens on TELAPI_PORT of this machine (with
--media: of the media service on MEDIA_PORT), prints the answer and exits with 1 unless
it is healthy. Made for containers, which have no other program to ask with.`,
		Args: cobra.NoArgs,
	}
	media := cmd.Flags().Bool("media", false, "ask the media service")
	cmd.RunE = c.tool(func(ctx context.Context, _ []string) error {
		host, port, secure := "127.0.0.1", c.cfg.Port, c.cfg.APITLSEnabled
		if *media {
			host, port, secure = cmp.Or(c.cfg.MediaHost, host), c.cfg.MediaPort, c.cfg.MediaTLSCertFile != ""
		}
		at := url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: "/health"}
		if secure {
			at.Scheme = "https"
		}
		answer, err := askHealth(ctx, at.String())
		if answer != "" {
			_, _ = fmt.Fprintln(c.Out, answer)
		}
		return err
	})
	return cmd
}

func askHealth(ctx context.Context, at string) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", fmt.Errorf("ask for health: %w", err)
	}
	// The certificate is for the public name, and this connection stays on the machine.
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // loopback
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask for health: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("not healthy: status %d", resp.StatusCode)
	}
	return strings.TrimSpace(string(body)), err
}
