package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"telapi/internal/app"
)

func (c *cli) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: groupLook,
		Short:   "Check the configuration and everything it points at",
		Long: `Checks, as 'telapi serve' would find them in this environment: every configuration
value, deprecated names, the JWT secret, the database and its schema, the key-value
store and the limits saved in it, and the media service. Changes nothing. Exits with 1
when a check fails.`,
		Args: cobra.NoArgs,
	}
	fingerprint := cmd.Flags().String("jwt-fingerprint", "", "fingerprint of the console's secret, as its log or doctor prints it")
	tokenFile := cmd.Flags().String("console-jwt", "", "file with a JWT the console issued (- for standard input)")
	cmd.RunE = c.work(func(ctx context.Context, _ []string) error {
		given := app.Symptoms{JWTFingerprint: *fingerprint}
		if *tokenFile != "" {
			token, err := c.read(*tokenFile)
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
			if err := c.printAs(f, func(w io.Writer) { _, _ = fmt.Fprintf(w, "%s  %-16s %s\n", mark, f.Check, f.Text) }); err != nil {
				return err
			}
		}
		if !healthy {
			return errReported
		}
		return nil
	})
	return cmd
}
