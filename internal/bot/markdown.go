package bot

import (
	"bytes"
	"strings"

	"golang.org/x/net/html"
)

// markdownToText returns the text of Markdown for speech.
//
// It is not a Markdown parser. It runs before the credential is checked, and
// the parsers we tried need quadratic time for hostile input. It processes each
// line once with bounded lookahead. A marker without a partner is text, as in
// "2 * 3" and "snake_case".
func markdownToText(s string) string {
	var out bytes.Buffer
	fence := ""
	for line := range strings.SplitSeq(s, "\n") {
		text := strings.TrimSpace(line)
		switch mark := codeFence(text); {
		case fence != "" && strings.HasPrefix(mark, fence) && mark == text:
			fence = ""
		case fence != "":
			out.WriteString(html.EscapeString(line))
		case mark != "":
			fence = mark
		default:
			if text = stripBlockMarkers(text); text != "" {
				in := inlineStripper{src: text}
				out.Write(in.strip())
			}
		}
		out.WriteByte('\n')
	}
	return collapseSpace(stripTags(out.String(), "\n"))
}

// codeFence returns the run of backticks or tildes that opens or closes a code
// block, or "".
func codeFence(s string) string {
	for _, c := range []string{"`", "~"} {
		if rest := strings.TrimLeft(s, c); len(s)-len(rest) >= 3 {
			return s[:len(s)-len(rest)]
		}
	}
	return ""
}

// stripBlockMarkers removes quotes, bullets, numbers, headings, table borders
// and link definitions from a line.
func stripBlockMarkers(s string) string {
	for range maxNesting {
		rest := s
		switch {
		case strings.HasPrefix(rest, ">"):
			rest = rest[1:]
		case len(rest) > 1 && strings.IndexByte("-*+", rest[0]) >= 0 && rest[1] == ' ' && !isRule(rest):
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
	if _, defined, ok := strings.Cut(s, "]"); isRule(s) || ok && s[0] == '[' && strings.HasPrefix(defined, ": ") {
		return ""
	}
	if strings.HasPrefix(s, "|") {
		s = strings.ReplaceAll(s, "|", " ")
	}
	return strings.TrimSpace(s)
}

// isRule reports whether a line is a rule, an underline or a table border.
func isRule(s string) bool {
	return len(s) > 1 && strings.Trim(s, "-*_=|:+ ") == "" && strings.ContainsAny(s, "-*_=")
}
