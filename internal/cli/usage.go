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
	flags := map[string]*string{}
	cmd := &cobra.Command{Use: "usage TEAM", GroupID: groupLook, Short: "Show how much speech a team used", Args: cobra.ExactArgs(1),
		Example: "  telapi usage tm_… --from 2026-10-01 --interval month --group-by voice"}
	for _, f := range [][3]string{ // flag, name in a query, description
		{"from", "from", "the first day, in UTC; default: the first of the month"},
		{"to", "to", "the last day; default: today"},
		{"interval", "interval", "day (default) or month"},
		{"group-by", "groupBy", "provider, voice, model or endpoint"},
	} {
		flags[f[1]] = cmd.Flags().String(f[0], "", f[2])
	}
	cmd.RunE = c.admin(func(ctx context.Context, a *app.Admin, args []string) error {
		asked := map[string][]string{}
		for name, value := range flags {
			if *value != "" {
				asked[name] = []string{*value}
			}
		}
		query, err := usage.ParseQuery(args[0], asked, time.Now())
		if err != nil {
			return err
		}
		report, err := a.Usage.Report(ctx, query)
		if err == nil && len(report.Buckets) == 0 {
			_, err = a.Teams.Store.Team(ctx, args[0]) // a mistyped id is no team that was silent
		}
		if err != nil {
			return err
		}
		return c.printAs(report, func(w io.Writer) { drawUsage(w, report) })
	})
	return cmd
}

func drawUsage(w io.Writer, r usage.Report) {
	_, _ = fmt.Fprintf(w, "Speech of %s from %s to %s, by %s (UTC)\n\n", r.TeamID, r.From, r.To, r.Interval)
	if len(r.Buckets) == 0 {
		_, _ = fmt.Fprintln(w, "none")
		return
	}
	most, label := int64(1), len("TOTAL")
	for _, b := range r.Buckets {
		most, label = max(most, b.Characters), max(label, utf8.RuneCountInString(bucketLabel(b)))
	}
	_, _ = fmt.Fprintf(w, "%-*s %11s %11s %11s %9s  █ billed ░ cached\n", label, "", "CHARACTERS", "BILLED", "CACHED", "REQUESTS")
	row := func(name string, f usage.Counts, bar string) {
		_, _ = fmt.Fprintf(w, "%-*s %11d %11d %11d %9d%s\n", label, name, f.Characters, f.Billed, f.Cached, f.Requests, bar)
	}
	for _, b := range r.Buckets {
		row(bucketLabel(b), b.Counts, "  "+bar(b.Counts, most))
	}
	row("TOTAL", r.Total, "")
}

func bucketLabel(b usage.Bucket) string {
	if b.Group == nil {
		return b.Start
	}
	return strings.TrimSpace(b.Start + " " + printable(*b.Group))
}

// bar draws a bucket as a part of the largest. What was used at all is seen.
func bar(f usage.Counts, most int64) string {
	const width = 32
	length := func(n int64) int {
		if n == 0 {
			return 0
		}
		return max(1, int((n*width+most/2)/most))
	}
	return strings.Repeat("█", length(f.Billed)) + strings.Repeat("░", length(f.Cached))
}
