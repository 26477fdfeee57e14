package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"telapi/internal/app"
)

func (c *cli) doctorCommand() *cobra.Command {
	var given app.Symptoms
	var tokenFile string
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: groupLook,
		Short:   "Check the configuration and everything it points at",
		Long: `Checks, as 'telapi serve' would find them in this environment: every configuration
value, deprecated names, the JWT secret, the database and its schema, the key-value
store and the limits saved in it, and the media service. Changes nothing. Exits with 1
when a check fails.`,
		Args: cobra.NoArgs,
		RunE: c.work(func(ctx context.Context, _ []string) error {
			if tokenFile != "" {
				token, err := c.readFile(tokenFile)
				if err != nil {
					return err
				}
				given.ConsoleJWT = strings.TrimSpace(string(token))
			}
			healthy := true
			for _, f := range app.Diagnose(ctx, c.Env, given, c.Err) {
				mark := "ok  "
				if !f.OK {
					mark, healthy = "FAIL", false
				}
				if err := c.print(f, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s  %-16s %s\n", mark, f.Check, f.Text) }); err != nil {
					return err
				}
			}
			if !healthy {
				return errReported
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&given.JWTFingerprint, "jwt-fingerprint", "", "fingerprint of the console's secret, as its log or doctor prints it")
	cmd.Flags().StringVar(&tokenFile, "console-jwt", "", "file with a JWT the console issued (- for standard input)")
	return cmd
}

// readFile reads a named file, or standard input for "-".
func (c *cli) readFile(name string) ([]byte, error) {
	const most = 8 << 20
	if name == "-" {
		return io.ReadAll(io.LimitReader(c.In, most))
	}
	return os.ReadFile(name)
}

func (c *cli) migrateCommand() *cobra.Command {
	var statusOnly bool
	cmd := &cobra.Command{
		Use:     "migrate",
		GroupID: groupRun,
		Short:   "Bring the database schema up to date",
		Long: `Applies pending migrations. 'serve' and 'dev' do the same at start; several at once are
safe. Use it to migrate before an upgrade is rolled out.`,
		Args: cobra.NoArgs,
		RunE: c.work(func(ctx context.Context, _ []string) error {
			cfg, err := c.configure()
			if err != nil {
				return err
			}
			status, err := app.Migrate(ctx, cfg, c.Err, statusOnly)
			if err != nil {
				return err
			}
			return c.print(status, func(w io.Writer) {
				_, _ = fmt.Fprintf(w, "%s: schema version %d of %d\n", status.Database, status.Current, status.Newest)
				for _, p := range status.Pending {
					_, _ = fmt.Fprintln(w, "  pending:", p)
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&statusOnly, "status", false, "only show what is pending")
	return cmd
}
