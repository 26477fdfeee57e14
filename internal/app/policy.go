package app

import (
	"strconv"
	"strings"

	"telapi/internal/command"
	"telapi/internal/config"
	"telapi/internal/fault"
)

// PlatformPolicy returns the command policy that applies to all gateway profiles. Its
// error is config.Problems, like that of config.Load.
func PlatformPolicy(cfg config.Config) (command.PlatformPolicy, error) {
	platform, err := command.NewPlatformPolicy(cfg.CommandsDisabled, cfg.TransferTargets, cfg.TransferHeaders)
	if err == nil {
		return platform, nil
	}
	var problems config.Problems
	for _, issue := range fault.From(err).Details.([]fault.Issue) {
		add := func(name string, values []string) {
			problems = append(problems, config.Problem{Name: name, Value: strconv.Quote(strings.Join(values, ",")), Text: issue.Message})
		}
		switch list, _, _ := strings.Cut(issue.Path[1:], "/"); list {
		case "disabled":
			add("COMMANDS_DISABLED", cfg.CommandsDisabled)
		case "targets":
			add("TRANSFER_ALLOWED_TARGETS", cfg.TransferTargets)
		case "headers":
			add("TRANSFER_ALLOWED_HEADERS", cfg.TransferHeaders)
		}
	}
	return platform, problems
}
