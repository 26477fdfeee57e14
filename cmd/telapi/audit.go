package main

import (
	"context"

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
	period := map[string]*string{ // by query parameter
		"from": f.String("from", "", "start of the period, such as 2026-11-01T00:00:00Z"),
		"to":   f.String("to", "", "end of the period, exclusive"),
	}
	limit := f.Int64("limit", 100, "maximum number of changes")
	const teamUsage = "list only changes to this team, its keys, endpoints and sessions"
	cmd.RunE = c.withTeams(cmd, teamUsage, func(ctx context.Context, a *app.Admin, teams page.Teams) (any, error) {
		if *limit < 1 {
			return nil, c.usageError(`invalid --limit "%d": use a number above 0`, *limit)
		}
		params := map[string][]string{}
		for name, value := range period {
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
