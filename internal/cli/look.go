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
	return &cobra.Command{Use: "version", GroupID: groupLook, Short: "Print the version", Args: cobra.NoArgs,
		RunE: c.work(func(context.Context, []string) error {
			return c.printAs(map[string]string{"version": version}, func(w io.Writer) { writeRow(w, "telapi "+version) })
		})}
}

func (c *cli) configCommand() *cobra.Command {
	return &cobra.Command{Use: "config", GroupID: groupLook, Short: "Print the effective configuration, secrets masked", Args: cobra.NoArgs,
		RunE: c.tool(func(context.Context, []string) error {
			return c.print(tableOf(c.cfg.Effective(), itself, "name", "value", "source"))
		})}
}

func (c *cli) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "doctor", GroupID: groupLook, Short: "Check the configuration and everything it points at", Args: cobra.NoArgs,
		Long: `Checks, as 'telapi serve' would find them in this environment: every configuration
value, deprecated names, the JWT secret, the database and its schema, the key-value
store and the limits saved in it, and the media service. Changes nothing. Exits with 1
when a check fails.`}
	fingerprint := cmd.Flags().String("jwt-fingerprint", "", "fingerprint of the console's secret, as its log or doctor prints it")
	cmd.RunE = c.work(func(ctx context.Context, _ []string) (err error) {
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
	cmd := &cobra.Command{Use: "health", GroupID: groupLook, Short: "Ask the server on this machine for its health", Args: cobra.NoArgs,
		Long: `Asks /health of the API server that listens on TELAPI_PORT of this machine (with
--media: of the media service on MEDIA_PORT), prints the answer and exits with 1 unless
it is healthy. Made for containers, which have no other program to ask with.`}
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
		return c.askHealth(ctx, at.String())
	})
	return cmd
}

func (c *cli) askHealth(ctx context.Context, at string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	// The certificate is for the public name, and this connection stays on the machine.
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // loopback
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask for health: %w", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	_, _ = fmt.Fprintf(c.Out, "%s\n", answer)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("not healthy: status %d", resp.StatusCode)
	}
	return err
}
