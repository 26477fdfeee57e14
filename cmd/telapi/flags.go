package main

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// usageError returns a usage error that a command's body has detected.
func (c *cli) usageError(format string, args ...any) error {
	c.validUsage = false
	return fmt.Errorf(format, args...)
}

// printUsageError prints an error in a command line with the usage of the command.
func (c *cli) printUsageError(cmd *cobra.Command, err error) {
	c.printProblem("%v", err)
	if !cmd.HasSubCommands() {
		_, _ = fmt.Fprintln(c.Err, "Usage:", cmd.UseLine())
	}
	_, _ = fmt.Fprintf(c.Err, "See '%s --help'.\n", cmd.CommandPath())
}

// parseUse returns the names of a command's arguments and of its required flags, which
// are those of its Use line. Words before the first flag are arguments. Flags in
// brackets are optional.
func parseUse(cmd *cobra.Command) (arguments, flags []string) {
	inFlags := false
	for _, word := range strings.Fields(cmd.Use)[1:] {
		inFlags = inFlags || word[0] == '-' || word[0] == '['
		if flag, required := strings.CutPrefix(word, "--"); required {
			flags = append(flags, flag)
		} else if !inFlags {
			arguments = append(arguments, word)
		}
	}
	return arguments, flags
}

// requireUse makes a command require the arguments and flags of its Use line, and
// values of oneOf for its flags.
func requireUse(cmd *cobra.Command) {
	arguments, flags := parseUse(cmd)
	for _, flag := range flags { // for completion; the function below reports missing ones
		if err := cmd.MarkFlagRequired(flag); err != nil {
			panic(err) // the flag does not exist
		}
	}
	if cmd.Args != nil {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		var missing []string
		for _, flag := range flags {
			if !cmd.Flags().Changed(flag) {
				missing = append(missing, "--"+flag)
			}
		}
		switch {
		case len(args) < len(arguments):
			return fmt.Errorf("missing argument %s", joinWords(arguments[len(args):], "and"))
		case len(args) > len(arguments):
			return fmt.Errorf("unexpected argument %q: quote a value that contains spaces", args[len(arguments)])
		case len(missing) > 0:
			return fmt.Errorf("missing %s", joinWords(missing, "and"))
		}
		return checkValues(cmd)
	}
}

// allowedValues is the annotation of a flag that oneOf has restricted.
const allowedValues = "telapi_allowed_values"

// oneOf restricts a flag, or each value of a repeatable one, to a list of values,
// which completion offers.
func oneOf[S ~string](cmd *cobra.Command, name string, allowed []S) {
	values := convert[string](allowed)
	cmd.Flags().Lookup(name).Annotations = map[string][]string{allowedValues: values}
	offer(cmd, name, values)
}

// offer makes completion offer values for a flag.
func offer(cmd *cobra.Command, name string, values []string) {
	if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the flag does not exist
	}
}

// checkValues checks the flags that oneOf has restricted.
func checkValues(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		allowed := f.Annotations[allowedValues]
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, value := range values {
			if err == nil && allowed != nil && !slices.Contains(allowed, value) {
				err = fmt.Errorf("invalid --%s %q: use %s", f.Name, value, joinWords(allowed, "or"))
			}
		}
	})
	return err
}

// flagError replaces the parser's texts.
func flagError(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		hint := map[string]string{"duration": "a duration such as 60s or 1m", "int": "an integer", "int64": "an integer", "bool": "true or false"}[e.GetFlag().Value.Type()]
		number, isDays := strings.CutSuffix(e.GetValue(), "d")
		if days, err := strconv.Atoi(number); err == nil && isDays {
			hint = fmt.Sprintf("hours instead of days: %dh", 24*days)
		}
		return fmt.Errorf("invalid --%s %q: use %s", e.GetFlag().Name, e.GetValue(), hint)
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("missing value of --%s", e.GetFlag().Name)
	}
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name, shorthands := e.GetSpecifiedName(), e.GetSpecifiedShortnames()
		if number, err := strconv.Atoi(shorthands); err == nil { // the parser reads -5 as a flag
			return fmt.Errorf("invalid number -%d: use 0 or more", number)
		}
		given := "--" + name
		if shorthands != "" {
			name, given = shorthands, "-"+shorthands
		}
		if variable := settingFor(cmd, name); variable != "" {
			return fmt.Errorf("unknown flag %s: set the environment variable %s instead, as in %s=… %s", given, variable, variable, cmd.CommandPath())
		}
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if similar := strictjson.Similar(name, known); similar != "" {
			return fmt.Errorf("unknown flag %s: did you mean --%s?", given, similar)
		}
		return fmt.Errorf("unknown flag %s", given)
	}
	return fmt.Errorf("invalid command line: %w", err)
}

// settingFor returns the variable for a setting that is a flag of other programs, or "".
func settingFor(cmd *cobra.Command, flag string) string {
	prefix := "TELAPI_"
	if cmd.Name() == "media" {
		prefix = "MEDIA_"
	}
	switch flag {
	case "port", "p":
		return prefix + "PORT"
	case "host", "bind", "address", "listen":
		return prefix + "HOST"
	case "data-dir", "data":
		return "DATA_DIR"
	}
	return ""
}

// withFlags reports the issues of a request's members as issues of the flags or arguments
// that set them: names maps the path of a member to the flag or argument.
func withFlags(cmd *cobra.Command, err error, names map[string]string) error {
	failure, ok := errors.AsType[*fault.Error](err)
	if !ok || failure.Code != fault.Validation {
		return err
	}
	issues, _ := failure.Details.([]fault.Issue)
	issues = slices.Clone(issues)
	for n, issue := range issues {
		member, index := issue.Path, 0
		if i, err := strconv.Atoi(path.Base(member)); err == nil { // an item of a list
			member, index = path.Dir(member), i
		}
		if name := names[member]; name != "" {
			reason := strings.ToLower(issue.Message[:1]) + strings.TrimSuffix(issue.Message[1:], ".")
			issues[n].Path, issues[n].Message = "", fmt.Sprintf("invalid %s: %s", givenValue(cmd, name, index), reason)
		}
	}
	return failure.WithDetails(issues)
}

// givenValue returns the name and value of a flag or an argument. Of a repeatable flag, it
// returns the value with the given index.
func givenValue(cmd *cobra.Command, name string, index int) string {
	f := cmd.Flags().Lookup(strings.TrimPrefix(name, "--"))
	if f == nil {
		arguments, _ := parseUse(cmd)
		return fmt.Sprintf("%s %q", name, cmd.Flags().Arg(slices.Index(arguments, name)))
	}
	value := f.Value.String()
	if list, ok := f.Value.(pflag.SliceValue); ok && index < len(list.GetSlice()) {
		value = list.GetSlice()[index]
	}
	return fmt.Sprintf("%s %q", name, value)
}

// group returns a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: requireSubcommand}
	g.AddCommand(commands...)
	return g
}

// requireSubcommand is the RunE function of a command that only has subcommands.
func requireSubcommand(cmd *cobra.Command, args []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	if len(args) > 0 {
		return fmt.Errorf("unknown subcommand %q: use %s", args[0], joinWords(names, "or"))
	}
	return fmt.Errorf("missing subcommand: use %s", joinWords(names, "or"))
}

// unknownCommand returns the error for a command that does not exist.
func unknownCommand(root *cobra.Command, name string) error {
	for _, typos := range []int{1, 2} {
		root.SuggestionsMinimumDistance = typos
		if similar := root.SuggestionsFor(name); len(similar) > 0 {
			return fmt.Errorf("unknown command %q: did you mean %s?", name, joinWords(similar, "or"))
		}
	}
	return fmt.Errorf("unknown command %q", name)
}

// helpCommand replaces the help command of the library, which succeeds if the topic
// does not exist.
func helpCommand() *cobra.Command {
	return &cobra.Command{Use: "help [COMMAND]", Short: "Show the help of a command", Args: cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			parent, _, _ := cmd.Root().Find(args)
			var names []string
			for _, c := range parent.Commands() {
				names = append(names, cobra.CompletionWithDesc(c.Name(), c.Short))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, _ := cmd.Root().Find(args)
			switch {
			case len(rest) == 0:
				topic.InitDefaultHelpFlag()
				return topic.Help()
			case topic.HasParent():
				return requireSubcommand(topic, rest)
			}
			return unknownCommand(topic, rest[0])
		}}
}

// joinWords joins values as in "a, b or c".
func joinWords[S ~string](values []S, conjunction string) string {
	list := fault.Join(values)
	if comma := strings.LastIndex(list, ", "); comma >= 0 {
		list = list[:comma] + " " + conjunction + " " + list[comma+2:]
	}
	return list
}

// convert converts strings to another string type.
func convert[T, S ~string](values []S) []T {
	converted := make([]T, len(values))
	for i, value := range values {
		converted[i] = T(value)
	}
	return converted
}
