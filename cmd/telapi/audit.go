package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"telapi/internal/app"
	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/internal/page"
)

func (c *cli) auditCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "audit [--team TEAM] [--from TIME] [--to TIME]", Short: "List the changes that administrators made, newest first",
		Example: "  telapi audit --team tm_… --from 2026-11-01T00:00:00Z"}
	f := cmd.Flags()
	from := f.String("from", "", "first time, such as 2026-11-01T00:00:00Z")
	to := f.String("to", "", "time after the last one")
	limit := f.Int64("limit", 100, "number of changes")
	const teamUsage = "list only changes to this team, its keys, endpoints and sessions"
	cmd.RunE = c.withTeams(cmd, teamUsage, func(ctx context.Context, a *app.Admin, teams page.Teams) (any, error) {
		if *limit < 1 {
			return nil, c.usageError("invalid --limit %q: use a number above 0", strconv.FormatInt(*limit, 10))
		}
		params := map[string][]string{}
		for name, value := range map[string]*string{"from": from, "to": to} {
			if f.Changed(name) {
				params[name] = []string{*value}
			}
		}
		var issues fault.Issues
		query := audit.ParseQuery(params, &issues)
		if err := issues.Err(); err != nil {
			return nil, withFlags(cmd, err, map[string]string{"/query/from": "--from", "/query/to": "--to"})
		}
		query.Teams, query.Limit = teams, int(*limit)
		entries, err := a.Audit.AuditEntries(ctx, query)
		return newTable(entries, "at", "actor", "action", "target", "details"), err
	})
	return cmd
}
