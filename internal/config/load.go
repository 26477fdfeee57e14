package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"telapi/internal/redact"
)

// Problem is one error in the configuration. Secrets in Value are masked.
type Problem struct{ Name, Value, Text string }

func (p Problem) Error() string {
	if p.Value == "" {
		return p.Name + ": " + p.Text
	}
	return p.Name + "=" + p.Value + ": " + p.Text
}

// Problems lists all errors in the configuration, so that they can be fixed at once.
type Problems []Problem

func (p Problems) Error() string {
	text := "invalid configuration:"
	for _, problem := range p {
		text += "\n  " + problem.Error()
	}
	return text
}

// Warning describes a valid setting that is probably a mistake.
type Warning struct{ Name, Text string }

func (w Warning) String() string { return w.Name + " " + w.Text }

// Load reads the configuration from an environment in the format of os.Environ.
// An empty value counts as unset. The error, if any, is Problems. Warnings are
// returned for valid configurations, too.
func Load(environ []string, mode Mode) (Config, []Warning, error) {
	l := loader{mode: mode, env: make(map[string]string, len(environ))}
	for _, entry := range environ {
		if name, value, _ := strings.Cut(entry, "="); value != "" {
			l.env[name] = value
		} else {
			delete(l.env, name)
		}
	}
	l.cfg.sources = map[string]Source{}
	l.checkNames()
	fields := reflect.ValueOf(&l.cfg).Elem()
	for _, s := range settings() {
		l.load(s, fields.FieldByIndex(s.Index))
	}
	l.checkCombinations()
	if len(l.problems) > 0 {
		return Config{}, l.warnings, l.problems
	}
	return l.cfg, l.warnings, nil
}

// loader collects the configuration, warnings and problems.
type loader struct {
	mode     Mode
	env      map[string]string
	cfg      Config
	warnings []Warning
	problems Problems
}

func (l *loader) warnIf(condition bool, name, format string, args ...any) {
	if condition {
		l.warnings = append(l.warnings, Warning{name, fmt.Sprintf(format, args...)})
	}
}

func (l *loader) rejectIf(condition bool, name, value, format string, args ...any) {
	if condition {
		l.problems = append(l.problems, Problem{name, value, fmt.Sprintf(format, args...)})
	}
}

// load sets one field from the environment, the file that NAME_FILE names, or its
// default.
func (l *loader) load(s setting, field reflect.Value) {
	value, source := l.env[s.name], Environment
	if path := l.env[s.fileName()]; s.secret && path != "" {
		content, err := secretFile(path)
		if value != "" {
			err = errors.New("is set, and so is " + s.name + "; remove one of them")
		}
		if err != nil {
			l.cfg.sources[s.name] = Source(s.fileName()) // so that a required value is not reported as missing
			l.problems = append(l.problems, Problem{s.fileName(), strconv.Quote(path), err.Error()})
			return
		}
		value, source = content, Source(s.fileName())
	}
	trimmed := strings.TrimSpace(value)
	if s.secret && s.Tag.Get("kind") == "" { // white space may be part of it
		l.warnIf(value != trimmed, s.name, "starts or ends with white space, which is part of the value")
	} else {
		value = trimmed
	}
	if value == "" {
		value, source = s.Tag.Get("default"), Default
		if l.mode == Dev {
			value = cmp.Or(s.Tag.Get("dev"), value)
		}
	}
	if value == "" {
		return
	}
	l.cfg.sources[s.name] = source
	if err := s.assign(field, value, l.mode); err != nil {
		text := "use " + s.valid(l.mode)
		if !errors.Is(err, errInvalid) {
			text = err.Error() + "; " + text
		}
		l.problems = append(l.problems, Problem{s.name, s.masked(value), text})
	}
}

// maxSecretFile is the maximum size of a file with a secret.
const maxSecretFile = 1 << 20

// secretFile returns the content of a file without its last line break. Its errors
// contain neither the content nor the path.
func secretFile(path string) (string, error) {
	var content []byte
	file, err := os.Open(path)
	if err == nil {
		defer func() { _ = file.Close() }()
		content, err = io.ReadAll(io.LimitReader(file, maxSecretFile+1))
	}
	if failure, ok := errors.AsType[*os.PathError](err); ok {
		err = failure.Err
	}
	switch value := strings.TrimSuffix(string(content), "\n"); {
	case err != nil:
		return "", fmt.Errorf("can't be read: %w", err)
	case len(content) > maxSecretFile:
		return "", fmt.Errorf("has more than %d bytes", maxSecretFile)
	case strings.TrimSpace(value) == "":
		return "", errors.New("is empty; write the value to it, or remove the variable")
	default:
		return value, nil
	}
}

// errInvalid is the error for a value that needs no more explanation than the
// description of valid values.
var errInvalid = errors.New("invalid value")

// assign parses value into the field. Its error never contains the value.
func (s setting) assign(field reflect.Value, value string, mode Mode) (err error) {
	kind, _ := s.kind(mode)
	switch target := field.Addr().Interface().(type) {
	case *bool:
		if kind == "true" {
			*target = value == "true"
		} else if *target, err = strconv.ParseBool(strings.ToLower(value)); err != nil {
			return errInvalid
		}
	case *int:
		return parseInRange(target, value, s, strconv.Atoi)
	case *int64:
		return parseInRange(target, value, s, func(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) })
	case *time.Duration:
		return parseInRange(target, value, s, time.ParseDuration)
	case *[]netip.Prefix:
		for part := range strings.SplitSeq(value, ",") {
			prefix, ok := parsePrefix(strings.TrimSpace(part))
			if !ok {
				return errInvalid
			}
			*target = append(*target, prefix)
		}
	case *[]string:
		for part := range strings.SplitSeq(value, ",") {
			part = strings.TrimSpace(part)
			if kind == "origins" {
				part, _ = NormalizeOrigin(part)
			}
			if part == "" || s.oneof != nil && (!slices.Contains(s.oneof, part) || slices.Contains(*target, part)) {
				return errInvalid
			}
			*target = append(*target, part)
		}
	case *redact.Secret:
		if minBytes, _ := strconv.Atoi(s.Tag.Get("min")); len(value) < minBytes && mode != Tool {
			return fmt.Errorf("has only %d bytes", len(value))
		}
		*target = redact.Secret(value)
		return s.checkFormat(value, mode)
	case *string:
		if s.oneof != nil {
			if value = strings.ToLower(value); !slices.Contains(s.oneof, value) {
				return errInvalid
			}
		}
		*target = value
		if kind == "url" {
			*target = strings.TrimRight(value, "/") // so that paths can be appended
		}
		return s.checkFormat(value, mode)
	default:
		panic("config: no parser for the type of " + s.name)
	}
	return nil
}

// parseInRange parses a value between the setting's min and max.
func parseInRange[T cmp.Ordered](target *T, value string, s setting, parse func(string) (T, error)) (err error) {
	low, errLow := parse(s.Tag.Get("min"))
	high, errHigh := parse(s.Tag.Get("max"))
	if err := errors.Join(errLow, errHigh); err != nil {
		panic("config: invalid tag of " + s.name + ": " + err.Error())
	}
	if *target, err = parse(value); err != nil || *target < low || *target > high {
		return errInvalid
	}
	return nil
}

// checkFormat checks a value according to its kind tag. Its error never contains the
// value.
func (s setting) checkFormat(value string, mode Mode) error {
	switch kind, detail := s.kind(mode); kind {
	case "url":
		a, err := parseAddress(value, strings.Split(detail, ","))
		if err != nil {
			return err
		}
		return a.check(s.secret)
	case "pem":
		_, err := parseBundle(value)
		return err
	case "ice":
		_, err := parseICEServers(value)
		return err
	}
	return nil
}

// parsePrefix accepts a CIDR range or a single address. IPv4-mapped IPv6 ranges
// are converted to IPv4, as client addresses are.
func parsePrefix(s string) (netip.Prefix, bool) {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		addr, err := netip.ParseAddr(s)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, false
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if addr := prefix.Addr(); addr.Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, false
		}
		prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), true
}
