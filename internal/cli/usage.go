package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/usage"
)

func (c *cli) usageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "usage TEAM", Short: "Show the speech usage of a team",
		Example: "  telapi usage tm_… --from 2026-10-01 --interval month --group-by voice"}
	flags := map[string]*string{} // by query parameter
	for _, f := range []struct{ flag, param, description string }{
		{"from", "from", "first day in UTC (default: first day of the month)"},
		{"to", "to", "last day in UTC (default: today)"},
		{"interval", "interval", "day (default) or month"},
		{"group-by", "groupBy", "provider, voice, model or endpoint"},
	} {
		flags[f.param] = cmd.Flags().String(f.flag, "", f.description)
	}
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, args []string) error {
		params := map[string][]string{}
		for name, value := range flags {
			if *value != "" {
				params[name] = []string{*value}
			}
		}
		query, err := usage.ParseQuery(args[0], params, time.Now())
		if err != nil {
			return err
		}
		report, err := a.Usage.Report(ctx, query)
		if err == nil && len(report.Buckets) == 0 {
			_, err = a.Teams.Store.Team(ctx, args[0]) // report an unknown team ID
		}
		if err != nil {
			return err
		}
		return c.printAs(report, func(w io.Writer) { printUsage(w, report) })
	})
	return cmd
}

func printUsage(w io.Writer, r usage.Report) {
	_, _ = fmt.Fprintf(w, "Speech usage of %s from %s to %s, by %s (UTC)\n\n", r.TeamID, r.From, r.To, r.Interval)
	if len(r.Buckets) == 0 {
		_, _ = fmt.Fprintln(w, "none")
		return
	}
	largest, width := int64(1), len("TOTAL")
	for _, b := range r.Buckets {
		largest, width = max(largest, b.Characters), max(width, utf8.RuneCountInString(bucketLabel(b)))
	}
	_, _ = fmt.Fprintf(w, "%-*s %11s %11s %11s %9s  █ billed ░ cached\n", width, "", "CHARACTERS", "BILLED", "CACHED", "REQUESTS")
	row := func(name string, n usage.Counts, bar string) {
		_, _ = fmt.Fprintf(w, "%-*s %11d %11d %11d %9d%s\n", width, name, n.Characters, n.Billed, n.Cached, n.Requests, bar)
	}
	for _, b := range r.Buckets {
		row(bucketLabel(b), b.Counts, "  "+usageBar(b.Counts, largest))
	}
	row("TOTAL", r.Total, "")
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
	blocks := func(n int64) int {
		if n == 0 {
			return 0
		}
		return max(1, int((n*width+largest/2)/largest))
	}
	return strings.Repeat("█", blocks(n.Billed)) + strings.Repeat("░", blocks(n.Cached))
}
