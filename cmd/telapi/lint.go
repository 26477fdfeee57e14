package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/internal/callback"
	"telapi/internal/command"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
	"telapi/internal/team"
)

func (c *cli) callbackLintCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "lint BODY.json", Short: "Check a callback body and print the resulting stream entries",
		Long: `Reads a callback body from a file, or from standard input if the name is -, and prints the
entries that it would append to the runtime stream, one per line, including denied commands
with the reason. An invalid body is reported with all its issues. Members that have no
effect, for example because their name is misspelled, are reported as warnings. No server
is needed. A streamed answer is read if the name ends in .ndjson or .sse, or with --content-type.
COMMANDS_DISABLED, TRANSFER_ALLOWED_TARGETS and TRANSFER_ALLOWED_HEADERS apply as on the server.`,
		Example: "  telapi callback lint answer.json --profile profile.json\n  telapi callback lint answer.ndjson --kind llm"}
	profileFile := cmd.Flags().String("profile", "", "JSON file with the gateway profile (default: no command is allowed)")
	kind := cmd.Flags().String("kind", string(wire.BotItem), "kind of provider: "+joinWords(wire.WorkItemKinds, "or"))
	channelID := cmd.Flags().String("channel", "", "channel ID (default: the one in the body)")
	contentType := cmd.Flags().String("content-type", "", "media type of a streamed answer: "+callback.NDJSON+" or "+callback.EventStream)
	split := cmd.Flags().String("split", "sentence", "how a streamed answer is cut into parts: sentence or none")
	oneOf(cmd, "kind", wire.WorkItemKinds)
	oneOf(cmd, "content-type", []string{"", callback.NDJSON, callback.EventStream})
	oneOf(cmd, "split", []string{"sentence", "none"})
	strict := strictFlag(cmd)
	cmd.RunE = c.withConfig(func(ctx context.Context, args []string) (any, error) {
		platform, err := app.PlatformPolicy(c.cfg)
		if err != nil {
			return nil, err
		}
		var profile wire.GatewayProfile
		if *profileFile != "" {
			if profile, err = c.readProfile(ctx, *profileFile, *strict); err != nil {
				return nil, err
			}
		}
		body, err := c.readFile(ctx, args[0])
		if err != nil {
			return nil, err
		}
		body = strictjson.TrimBOM(body)
		if limit := team.DefaultRequestLimits().CallbackBodyBytes; int64(len(body)) > limit {
			return nil, fmt.Errorf("%s has %d bytes: use at most %d", args[0], len(body), limit)
		}
		byExtension := map[string]string{".ndjson": callback.NDJSON, ".sse": callback.EventStream}
		mediaType := cmp.Or(*contentType, byExtension[filepath.Ext(args[0])])
		trial := callback.Trial{Kind: wire.WorkItemKind(*kind), Body: body, MediaType: mediaType, PerDelta: *split == "none", ChannelID: *channelID}
		result, err := callback.Try(trial, command.NewPolicy(profile, platform), time.Now())
		if err != nil {
			c.printError(inFile(args[0], body, err))
			return nil, errReported // an invalid body is the result of the check, not wrong usage
		}
		if err := c.warn(args[0], result.Warnings, *strict); err != nil {
			return nil, err
		}
		for _, e := range result.Entries {
			if err := c.printAs(e, func(w io.Writer) { writeRow(w, entryTitle(e)) }); err != nil {
				return nil, err
			}
		}
		return nil, nil
	})
	return cmd
}

// strictFlag adds the flag --strict. Its value is passed to readProfile and warn.
func strictFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("strict", false, "fail if a member has no effect, for example because its name is misspelled")
}

// warn prints warnings to standard error. They are an error if strict is set.
func (c *cli) warn(file string, warnings []strictjson.Warning, strict bool) error {
	for _, w := range warnings {
		c.printWarning("%s: %s", file, printable(w.String()))
	}
	if strict && len(warnings) > 0 {
		return fmt.Errorf("%s: warnings are errors with --strict", file)
	}
	return nil
}

// readProfile reads a gateway profile and warns about members that have no effect.
func (c *cli) readProfile(ctx context.Context, file string, strict bool) (profile wire.GatewayProfile, err error) {
	raw, err := c.readFile(ctx, file)
	if err != nil {
		return profile, err
	}
	raw = strictjson.TrimBOM(raw)
	if profile, err = team.ParseProfile(raw); err != nil {
		return profile, inFile(file, raw, err)
	}
	return profile, c.warn(file, command.LintProfile(raw, ""), strict)
}

// inFile adds the file to an error in its content, and the line of a syntax error.
func inFile(file string, content []byte, err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return fmt.Errorf("%s: %w", file, err)
	}
	before := content[:min(int(syntax.ByteOffset), len(content))]
	line, column := 1+bytes.Count(before, []byte("\n")), len(before)-bytes.LastIndexByte(before, '\n')
	problem := "syntax error"
	if errors.Is(err, jsontext.ErrDuplicateName) {
		problem = "duplicate name"
	}
	return fault.New(fault.Validation, "%s is not valid JSON: %s at line %d, column %d", file, problem, line, column)
}
