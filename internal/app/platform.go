package app

import (
	"errors"
	"fmt"
	"strings"

	"telapi/internal/auth"
	"telapi/internal/command"
	"telapi/internal/config"
	"telapi/internal/fault"
)

// Platform is what the configuration sets over all flows. Its error names the
// variable, the value and what is wrong with it, as those of loading do.
func Platform(cfg config.Config) (command.Platform, error) {
	platform, err := command.NewPlatform(cfg.CommandsDisabled, cfg.TransferTargets)
	var refusal *fault.Error
	if !errors.As(err, &refusal) {
		return platform, err
	}
	var problems config.Problems
	issues, _ := refusal.Details.([]fault.Issue)
	for _, i := range issues {
		p := config.Problem{Name: "TRANSFER_ALLOWED_TARGETS", Value: fmt.Sprintf("%q", strings.Join(cfg.TransferTargets, ",")), Text: i.Message}
		if strings.HasPrefix(i.Path, "/disabled/") {
			p.Name, p.Value = "COMMANDS_DISABLED", fmt.Sprintf("%q", strings.Join(cfg.CommandsDisabled, ","))
			for n, c := range command.Catalogue {
				p.Text += []string{" Allowed: ", ", "}[min(n, 1)] + c.Type
			}
		}
		problems = append(problems, p)
	}
	return platform, problems
}

func jwtSecrets(cfg config.Config) auth.Secrets {
	return auth.Secrets{Current: cfg.JWTSecret, Previous: cfg.JWTPrevious}
}
