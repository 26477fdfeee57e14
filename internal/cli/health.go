package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (c *cli) healthCommand() *cobra.Command {
	var media bool
	cmd := &cobra.Command{
		Use:     "health",
		GroupID: groupLook,
		Short:   "Ask the server on this machine for its health",
		Long: `Asks /health of the API server that listens on TELAPI_PORT of this machine (with
--media: of the media service on MEDIA_PORT), prints the answer and exits with 1 unless
it is healthy. Made for containers, which have no other program to ask with.`,
		Args: cobra.NoArgs,
		RunE: c.work(func(ctx context.Context, _ []string) error {
			cfg, err := c.configure()
			if err != nil {
				return err
			}
			host, port, secure := "127.0.0.1", cfg.Port, cfg.APITLSEnabled
			if media {
				host, port, secure = cmp.Or(cfg.MediaHost, host), cfg.MediaPort, cfg.MediaTLSCertFile != ""
			}
			answer, err := askHealth(ctx, net.JoinHostPort(host, strconv.Itoa(port)), secure)
			if answer != "" {
				_, _ = fmt.Fprintln(c.Out, answer)
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&media, "media", false, "ask the media service")
	return cmd
}

func askHealth(ctx context.Context, address string, secure bool) (answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	scheme := "http"
	if secure {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+address+"/health", nil)
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
