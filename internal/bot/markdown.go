package bot

import (
	"bytes"
	"strings"

	"golang.org/x/net/html"
)

// fromMarkdown is what remains of Markdown when it is read aloud.
//
// It is not a Markdown parser. Those we tried take quadratic time on hostile
// text, and this runs before anybody has shown a credential; so it looks at
// each line once and remembers only what it may still have to take out. Where
// a marker has no partner it is text, as in "2 * 3" and "snake_case".
func fromMarkdown(s string) string {
	var out bytes.Buffer
	fence := ""
	for line := range strings.SplitSeq(s, "\n") {
		text := strings.TrimSpace(line)
		switch mark := fenceOf(text); {
		case fence != "" && strings.HasPrefix(mark, fence) && mark == text:
			fence = ""
		case fence != "":
			out.WriteString(html.EscapeString(line))
		case mark != "":
			fence = mark
		default:
			if text = unblock(text); text != "" {
				in := inline{src: text}
				out.Write(in.strip())
			}
		}
		out.WriteByte('\n')
	}
	return tidy(untag(out.String(), "\n"))
}

// fenceOf is the run of backticks or tildes that opens or closes a code block.
func fenceOf(s string) string {
	for _, c := range []string{"`", "~"} {
		if rest := strings.TrimLeft(s, c); len(s)-len(rest) >= 3 {
			return s[:len(s)-len(rest)]
		}
	}
	return ""
}

// unblock takes quotes, bullets, numbers, headings, table borders and link
// definitions off a line, and leaves nothing of a line that only draws.
func unblock(s string) string {
	for range maxNesting {
		rest := s
		switch {
		case strings.HasPrefix(rest, ">"):
			rest = rest[1:]
		case len(rest) > 1 && strings.IndexByte("-*+", rest[0]) >= 0 && rest[1] == ' ' && !draws(rest):
			rest = rest[2:]
		default:
			digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
			if digits > 0 && digits < 10 && len(rest) > digits+1 && strings.IndexByte(".)", rest[digits]) >= 0 && rest[digits+1] == ' ' {
				rest = rest[digits+2:]
			}
		}
		if len(rest) == len(s) {
			break
		}
		s = strings.TrimLeft(rest, " \t")
	}
	for _, box := range []string{"[ ] ", "[x] ", "[X] "} {
		s = strings.TrimPrefix(s, box)
	}
	if level := len(s) - len(strings.TrimLeft(s, "#")); level > 0 && level < 7 && (len(s) == level || s[level] == ' ') {
		s = strings.TrimRight(s[level:], "# ")
	}
	if _, defined, ok := strings.Cut(s, "]"); draws(s) || ok && s[0] == '[' && strings.HasPrefix(defined, ": ") {
		return ""
	}
	if strings.HasPrefix(s, "|") {
		s = strings.ReplaceAll(s, "|", " ")
	}
	return strings.TrimSpace(s)
}

// draws tells whether a line is a rule, an underline or a table's border.
func draws(s string) bool {
	return len(s) > 1 && strings.Trim(s, "-*_=|:+ ") == "" && strings.ContainsAny(s, "-*_=")
}
