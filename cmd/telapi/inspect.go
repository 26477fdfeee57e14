package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/speech"
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
			return newTable(c.cfg.Effective(), "name", "value", "source"), nil
		})}
}

func (c *cli) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "doctor", Short: "Check the configuration and the services it refers to",
		Long: `Checks what 'telapi serve' would use in this environment: configuration values, deprecated
variables, the JWT secret, the server on this machine, the database and its schema, the
key-value store and the rate limits stored in it, the media service, speech providers, and
STUN and TURN servers. If JWT_SECRET is not set and 'telapi dev' has run in DATA_DIR, it
checks what that uses.

Missing settings and services are warnings that name the remedy. The command changes nothing.
It exits with 1 if a check fails.`}
	fingerprint := cmd.Flags().String("jwt-fingerprint", "", "fingerprint of the console's JWT secret, from its log or doctor output")
	cmd.RunE = c.run(func(ctx context.Context, _ []string) (_ any, err error) {
		var passed, warnings, failed int
		for _, finding := range app.Diagnose(ctx, c.Env, *fingerprint, c.Err) {
			mark := c.paint(c.Out, green, "ok  ")
			switch {
			case !finding.OK:
				mark, failed = c.paint(c.Out, red, "FAIL"), failed+1
			case finding.Warning:
				mark, warnings = c.paint(c.Out, yellow, "warn"), warnings+1
			default:
				passed++
			}
			text := fmt.Sprintf("%s  %-16s %s", mark, finding.Check, finding.Text)
			if err := c.printAs(finding, func(w io.Writer) { writeRow(w, text) }); err != nil {
				return nil, err
			}
		}
		if !c.json {
			_, _ = fmt.Fprintf(c.Out, "\nPassed: %d. Warnings: %d. Failed: %d.\n", passed, warnings, failed)
		}
		if failed > 0 {
			return nil, errReported
		}
		return nil, nil
	})
	return cmd
}

func (c *cli) healthCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "health", SuggestFor: []string{"status", "ping"}, Short: "Print the health of the server on this machine",
		Long: `Requests /health of the API server on TELAPI_HOST and TELAPI_PORT, or with --media of the
media service on MEDIA_HOST and MEDIA_PORT, prints the response and exits with 1 if the
server is not healthy. Use it for health checks in containers without curl.`}
	media := cmd.Flags().Bool("media", false, "check the media service")
	cmd.RunE = c.withConfig(func(ctx context.Context, _ []string) (any, error) {
		url, prefix, command := app.APIServerURL(c.cfg), "TELAPI", "telapi serve or telapi dev"
		if *media {
			url, prefix, command = app.MediaServiceURL(c.cfg), "MEDIA", "telapi media"
		}
		status, body, err := app.CheckHealth(ctx, url)
		if err != nil {
			return nil, fmt.Errorf("no server at %s: %w. Start it with %s, or set %s_HOST and %s_PORT as for the server", url, fault.Reason(err), command, prefix, prefix)
		}
		_, _ = fmt.Fprintf(c.Out, "%s\n", body)
		if status != http.StatusOK {
			err = fmt.Errorf("the server at %s is not healthy (status %d): see its answer above, then run telapi doctor", url, status)
		}
		return nil, err
	})
	return cmd
}

func (c *cli) usageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "usage --team TEAM", Short: "Show the speech usage of a team",
		Example: "  telapi usage --team tm_… --from 2026-10-01 --interval month --group-by voice"}
	teamID := cmd.Flags().String("team", "", "team ID")
	values := map[string]*string{} // by query parameter
	flags := map[string]string{}   // by the path of the query parameter in issues
	for _, f := range []struct{ flag, param, description string }{
		{"from", "from", "first day in UTC (default: first day of the month)"},
		{"to", "to", "last day in UTC (default: today)"},
		{"interval", "interval", "day (default) or month"},
		{"group-by", "groupBy", "provider, voice, model or endpoint"},
	} {
		values[f.param] = cmd.Flags().String(f.flag, "", f.description)
		flags["/query/"+f.param] = "--" + f.flag
	}
	oneOf(cmd, "interval", speech.Intervals)
	oneOf(cmd, "group-by", speech.Properties)
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		params := map[string][]string{}
		for param, value := range values {
			if *value != "" {
				params[param] = []string{*value}
			}
		}
		query, err := speech.ParseUsageQuery(*teamID, params, time.Now())
		if err != nil {
			return nil, withFlags(cmd, err, flags)
		}
		summary, err := speech.SummarizeUsage(ctx, a.Usage, query, time.Now())
		if err == nil && len(summary.Buckets) == 0 {
			_, err = a.Teams.Store.Team(ctx, *teamID)
			err = withID(err, "team", *teamID)
		}
		if err != nil {
			return nil, err
		}
		return nil, c.printAs(summary, func(w io.Writer) { printUsage(w, summary) })
	})
	return cmd
}

// withID adds the ID to a NOT_FOUND error. It redacts the secret of an API key that
// was passed in place of an ID.
func withID(err error, kind, id string) error {
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	command := strings.TrimPrefix(kind, "API ")
	return fmt.Errorf("%s %s not found: telapi %s list shows all", kind, cmp.Or(printable(redact.Text(id)), `""`), command)
}

func printUsage(w io.Writer, summary speech.UsageSummary) {
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
	row := func(name string, n speech.UsageCounts, bar string) {
		_, _ = fmt.Fprintf(w, "%-*s %11d %11d %11d %9d%s\n", width, name, n.Characters, n.Billed, n.Cached, n.Requests, bar)
	}
	for _, b := range summary.Buckets {
		row(bucketLabel(b), b.UsageCounts, "  "+usageBar(b.UsageCounts, largest))
	}
	row("TOTAL", summary.Total, "")
}

func bucketLabel(b speech.UsageBucket) string {
	if b.Group == nil {
		return b.Start
	}
	return strings.TrimSpace(b.Start + " " + printable(*b.Group))
}

// usageBar draws a bucket relative to the largest one. Usage above zero has at least one block.
func usageBar(n speech.UsageCounts, largest int64) string {
	const width = 32
	blocks := func(characters int64) int {
		if characters == 0 {
			return 0
		}
		return max(1, int((characters*width+largest/2)/largest))
	}
	return strings.Repeat("█", blocks(n.Billed)) + strings.Repeat("░", blocks(n.Cached))
}
