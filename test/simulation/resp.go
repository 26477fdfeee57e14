package simulation

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"
)

// channelOf returns the channel ID of a key.
func channelOf(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	id, _, _ := strings.Cut(rest, "}")
	return id
}

// withoutBlock removes BLOCK from a command and returns its time.
func withoutBlock(args []string) ([]string, time.Duration) {
	i := slices.IndexFunc(args, func(a string) bool { return strings.EqualFold(a, "BLOCK") })
	if i < 0 || !strings.EqualFold(args[0], "XREAD") {
		return args, 0
	}
	ms, _ := strconv.Atoi(args[i+1])
	return slices.Concat(args[:i], args[i+2:]), time.Duration(ms) * time.Millisecond
}

// parseCommand parses a command at the start of b. n is its length, or 0 if it is
// incomplete.
func parseCommand(b []byte) (args []string, n int) {
	count, rest, ok := parseLength(b, '*')
	if !ok {
		return nil, 0
	}
	for range count {
		size, body, ok := parseLength(rest, '$')
		if !ok || len(body) < size+2 {
			return nil, 0
		}
		args = append(args, string(body[:size]))
		rest = body[size+2:]
	}
	return args, len(b) - len(rest)
}

func parseLength(b []byte, kind byte) (n int, rest []byte, ok bool) {
	end := bytes.Index(b, []byte("\r\n"))
	if end < 1 || b[0] != kind {
		return 0, nil, false
	}
	n, err := strconv.Atoi(string(b[1:end]))
	return n, b[end+2:], err == nil
}

// flatten returns the strings of a reply in order. Errors start with a minus.
func flatten(reply []byte) (list []string) {
	for len(reply) > 0 {
		line, rest, ok := bytes.Cut(reply, []byte("\r\n"))
		if !ok {
			return list
		}
		switch line[0] {
		case '$':
			n, _ := strconv.Atoi(string(line[1:]))
			if n < 0 {
				list, reply = append(list, ""), rest
				continue
			}
			list, reply = append(list, string(rest[:n])), rest[n+2:]
			continue
		case '*':
		case '-':
			list = append(list, string(line))
		default:
			list = append(list, string(line[1:]))
		}
		reply = rest
	}
	return list
}
