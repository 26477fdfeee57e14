package cli

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"telapi/internal/app"
	"telapi/internal/audit"
	"telapi/internal/fault"
)

func (c *cli) auditCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "audit [--team TEAM] [--from TIME] [--to TIME]", Short: "List the changes that administrators made, newest first",
		Example: "  telapi audit --team tm_… --from 2026-11-01T00:00:00Z"}
	f := cmd.Flags()
	team := f.String("team", "", "list only changes to this team, its keys, endpoints and sessions")
	from := f.String("from", "", "first time, such as 2026-11-01T00:00:00Z")
	to := f.String("to", "", "time after the last one")
	limit := f.Int64("limit", 100, "number of changes")
	flags := map[string]*pflag.Flag{"teamId": f.Lookup("team"), "from": f.Lookup("from"), "to": f.Lookup("to")}
	cmd.RunE = c.withAdmin(func(ctx context.Context, a *app.Admin, _ []string) (any, error) {
		if *limit < 1 {
			return nil, c.usageError("invalid --limit %q: use a number above 0", strconv.FormatInt(*limit, 10))
		}
		query, err := audit.ParseQuery(map[string][]string{"teamId": {*team}, "from": {*from}, "to": {*to}})
		if err != nil {
			return nil, c.invalidFlags(err, flags)
		}
		query.Limit = int(*limit)
		entries, err := a.Audit.AuditEntries(ctx, query)
		return newTable(entries, identity, "at", "actor", "action", "target", "details"), err
	})
	return cmd
}

// invalidFlags returns the issues of query parameters as one usage error.
func (c *cli) invalidFlags(err error, flags map[string]*pflag.Flag) error {
	var texts []string
	issues, _ := fault.From(withFlags(err, flags)).Details.([]fault.Issue)
	for _, i := range issues {
		texts = append(texts, i.Message)
	}
	return c.usageError("%s", strings.Join(texts, "; "))
}
