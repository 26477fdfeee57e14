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
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"telapi/internal/app"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/usage"
)

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version",
		RunE: c.run(func(context.Context, []string) (any, error) {
			return nil, c.printAs(map[string]string{"version": version}, func(w io.Writer) { writeRow(w, "telapi "+version) })
		})}
}

func (c *cli) configCommand() *cobra.Command {
	return &cobra.Command{Use: "config", Short: "Print the effective configuration with secrets masked",
		RunE: c.withConfig(func(context.Context, []string) (any, error) {
			return newTable(c.cfg.Effective(), identity, "name", "value", "source"), nil
		})}
}

func (c *cli) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "doctor", Short: "Check the configuration and the services it refers to",
		Long: `Checks what 'telapi serve' would use in this environment: configuration values, deprecated
variables, the JWT secret, the database and its schema, the key-value store and the rate
limits stored in it, the media service and speech providers. It changes nothing and exits
with 1 if a check fails.`}
	fingerprint := cmd.Flags().String("jwt-fingerprint", "", "fingerprint of the console's JWT secret, from its log or doctor output")
	cmd.RunE = c.run(func(ctx context.Context, _ []string) (_ any, err error) {
		for _, finding := range app.Diagnose(ctx, c.Env, *fingerprint, c.Err) {
			mark := "ok  "
			switch {
			case !finding.OK:
				mark, err = "FAIL", errReported
			case finding.Warning:
				mark = "warn"
			}
			text := fmt.Sprintf("%s  %-16s %s", mark, finding.Check, finding.Text)
			if err := c.printAs(finding, func(w io.Writer) { writeRow(w, text) }); err != nil {
				return nil, err
			}
		}
		return nil, err
	})
	return cmd
}

func (c *cli) healthCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "health", Short: "Print the health of the server on this machine",
		Long: `Requests /health of the API server on TELAPI_HOST and TELAPI_PORT, or with --media of the
media service on MEDIA_HOST and MEDIA_PORT, prints the response and exits with 1 if the
server is not healthy. Use it for health checks in containers without curl.`}
	media := cmd.Flags().Bool("media", false, "check the media service")
	cmd.RunE = c.withConfig(func(ctx context.Context, _ []string) (any, error) {
		host, port, scheme := c.cfg.Host, c.cfg.Port, c.cfg.APIScheme()
		if *media {
			host, port, scheme = c.cfg.MediaHost, c.cfg.MediaPort, "http"
			if c.cfg.MediaTLSCertFile != "" {
				scheme = "https"
			}
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(cmp.Or(host, "127.0.0.1"), strconv.Itoa(port))+"/health", nil)
		if err != nil {
			return nil, fmt.Errorf("check health: %w", err)
		}
		// The certificate is for the public name, and the connection does not leave the machine.
		client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
			DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // loopback
		resp, err := client.Do(req)
		if err != nil {
			return nil, fmt.Errorf("check health: %w", err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		_, _ = fmt.Fprintf(c.Out, "%s\n", body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("not healthy: status %d", resp.StatusCode)
		}
		return nil, err
	})
	return cmd
}

func (c *cli) usageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "usage TEAM", Short: "Show the speech usage of a team",
		Example: "  telapi usage tm_… --from 2026-10-01 --interval month --group-by voice"}
	flags := map[string]*pflag.Flag{} // by query parameter
	for _, f := range []struct{ flag, param, description string }{
		{"from", "from", "first day in UTC (default: first day of the month)"},
		{"to", "to", "last day in UTC (default: today)"},
		{"interval", "interval", "day (default) or month"},
		{"group-by", "groupBy", "provider, voice, model or endpoint"},
	} {
		cmd.Flags().String(f.flag, "", f.description)
		flags[f.param] = cmd.Flags().Lookup(f.flag)
	}
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) (any, error) {
		params := map[string][]string{}
		for name, f := range flags {
			if value := f.Value.String(); value != "" {
				params[name] = []string{value}
			}
		}
		query, err := usage.ParseQuery(args[0], params, time.Now())
		if err != nil {
			return nil, withFlags(err, flags)
		}
		report, err := a.Usage.Summary(ctx, query)
		if err == nil && len(report.Buckets) == 0 {
			_, err = a.Teams.Store.Team(ctx, args[0])
			err = withID(err, "team", args[0])
		}
		if err != nil {
			return nil, err
		}
		return nil, c.printAs(report, func(w io.Writer) { printUsage(w, report) })
	})
	return cmd
}

// withID adds the ID to a NOT_FOUND error. It redacts the secret of an API key that
// was passed in place of an ID.
func withID(err error, kind, id string) error {
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	return fmt.Errorf("%s %s not found", kind, printable(redact.Text(id)))
}

// withFlags reports the issues of query parameters as issues of the flags that set
// them.
func withFlags(err error, flags map[string]*pflag.Flag) error {
	failure := fault.From(err)
	issues, _ := failure.Details.([]fault.Issue)
	var list []fault.Issue
	for _, i := range issues {
		if f := flags[strings.TrimPrefix(i.Path, "/query/")]; f != nil {
			reason := strings.ToLower(i.Message[:1]) + strings.TrimSuffix(i.Message[1:], ".")
			i.Path, i.Message = "", fmt.Sprintf("invalid --%s %q: %s", f.Name, f.Value, reason)
		}
		list = append(list, i)
	}
	return failure.WithDetails(list)
}

func printUsage(w io.Writer, summary usage.Summary) {
	_, _ = fmt.Fprintf(w, "Speech usage of %s from %s to %s, by %s (UTC)\n\n", summary.TeamID, summary.From, summary.To, summary.Interval)
	if len(summary.Buckets) == 0 {
		_, _ = fmt.Fprintln(w, "none")
		return
	}
	largest, width := int64(1), len("TOTAL")
	for _, b := range summary.Buckets {
		largest, width = max(largest, b.Characters), max(width, utf8.RuneCountInString(bucketLabel(b)))
	}
	_, _ = fmt.Fprintf(w, "%-*s %11s %11s %11s %9s  █ billed ░ cached\n", width, "", "CHARACTERS", "BILLED", "CACHED", "REQUESTS")
	row := func(name string, n usage.Counts, bar string) {
		_, _ = fmt.Fprintf(w, "%-*s %11d %11d %11d %9d%s\n", width, name, n.Characters, n.Billed, n.Cached, n.Requests, bar)
	}
	for _, b := range summary.Buckets {
		row(bucketLabel(b), b.Counts, "  "+usageBar(b.Counts, largest))
	}
	row("TOTAL", summary.Total, "")
}

func bucketLabel(b usage.Bucket) string {
	if b.Group == nil {
		return b.Start
	}
	return strings.TrimSpace(b.Start + " " + printable(*b.Group))
}

// usageBar draws a bucket relative to the largest one. Usage above zero has at least one block.
func usageBar(n usage.Counts, largest int64) string {
	const width = 32
	blocks := func(characters int64) int {
		if characters == 0 {
			return 0
		}
		return max(1, int((characters*width+largest/2)/largest))
	}
	return strings.Repeat("█", blocks(n.Billed)) + strings.Repeat("░", blocks(n.Cached))
}
