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
	"time"

	"github.com/spf13/cobra"

	"telapi/internal/app"
)

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version",
		RunE: c.run(func(context.Context, []string) error {
			return c.printAs(map[string]string{"version": version}, func(w io.Writer) { writeRow(w, "telapi "+version) })
		})}
}

func (c *cli) configCommand() *cobra.Command {
	return &cobra.Command{Use: "config", Short: "Print the effective configuration with secrets masked",
		RunE: c.withConfig(func(context.Context, []string) error {
			return c.print(newTable(c.cfg.Effective(), identity, "name", "value", "source"))
		})}
}

func (c *cli) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "doctor", Short: "Check the configuration and the services it refers to",
		Long: `Checks what 'telapi serve' would use in this environment: configuration values, deprecated
variables, the JWT secret, the database and its schema, the key-value store and the rate
limits stored in it, the media service and speech providers. It changes nothing and exits
with 1 if a check fails.`}
	fingerprint := cmd.Flags().String("jwt-fingerprint", "", "fingerprint of the console's JWT secret, from its log or doctor output")
	cmd.RunE = c.run(func(ctx context.Context, _ []string) (err error) {
		for _, f := range app.Diagnose(ctx, c.Env, *fingerprint, c.Err) {
			mark := "ok  "
			if !f.OK {
				mark, err = "FAIL", errReported
			}
			if err := c.printAs(f, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s  %-16s %s\n", mark, f.Check, f.Text) }); err != nil {
				return err
			}
		}
		return err
	})
	return cmd
}

func (c *cli) healthCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "health", Short: "Print the health of the server on this machine",
		Long: `Requests /health of the API server on TELAPI_PORT of this machine, or with --media of the
media service on MEDIA_PORT, prints the response and exits with 1 if the server is not
healthy. Use it for health checks in containers without curl.`}
	media := cmd.Flags().Bool("media", false, "check the media service")
	cmd.RunE = c.withConfig(func(ctx context.Context, _ []string) error {
		host, port, secure := "127.0.0.1", c.cfg.Port, c.cfg.APITLSEnabled
		if *media {
			host, port, secure = cmp.Or(c.cfg.MediaHost, host), c.cfg.MediaPort, c.cfg.MediaTLSCertFile != ""
		}
		target := url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(port)), Path: "/health"}
		if secure {
			target.Scheme = "https"
		}
		return c.checkHealth(ctx, target.String())
	})
	return cmd
}

func (c *cli) checkHealth(ctx context.Context, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return fmt.Errorf("check health: %w", err)
	}
	// The certificate is for the public name, and the connection does not leave the machine.
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // loopback
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("check health: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	_, _ = fmt.Fprintf(c.Out, "%s\n", body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("not healthy: status %d", resp.StatusCode)
	}
	return err
}
