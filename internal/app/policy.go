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
	settings := map[string]struct {
		name   string
		values []string
	}{
		"disabled": {"COMMANDS_DISABLED", cfg.CommandsDisabled},
		"targets":  {"TRANSFER_ALLOWED_TARGETS", cfg.TransferTargets},
		"headers":  {"TRANSFER_ALLOWED_HEADERS", cfg.TransferHeaders},
	}
	var problems config.Problems
	for _, issue := range fault.From(err).Details.([]fault.Issue) {
		s := settings[strings.Split(issue.Path, "/")[1]] // a path such as /disabled/0
		problems = append(problems, config.Problem{Name: s.name, Value: strconv.Quote(strings.Join(s.values, ",")), Text: issue.Message})
	}
	return platform, problems
}
