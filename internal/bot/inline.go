package bot

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// inline strips one line of Markdown. Markers are written to out and later overwritten
// with taken if they turn out to have a partner.
type inline struct {
	src  string
	at   int
	out  []byte
	open []marker // emphasis that may still be closed, oldest first
	link []marker // brackets that may still be closed
	// lonely has a bit for each length of backtick runs that has no partner in
	// the rest of the line, so that none is looked for twice.
	lonely uint16
}

type marker struct {
	char  byte
	pos   int // in out
	count int
}

const (
	taken = 0 // NULs of the text itself are dropped before
	// Bounds that keep hostile text cheap and prose untouched: how far to look
	// for the end of an address or a tag, how long a run of backticks may be,
	// how many markers may be open, how deep quotes and lists may go.
	reach      = 1024
	maxTicks   = 15
	maxMarkers = 64
	maxNesting = 32
)

func (in *inline) strip() []byte {
	in.src = strings.ReplaceAll(in.src, "\x00", "")
	for in.at < len(in.src) {
		rest := in.src[in.at:]
		switch c := rest[0]; c {
		case '\\':
			if len(rest) > 1 && rest[1] < utf8.RuneSelf && unicode.In(rune(rest[1]), unicode.Punct, unicode.Symbol) {
				in.literal(rest[1:2])
				in.at += 2
				continue
			}
			in.copy(1)
		case '`':
			in.code(rest)
		case '*', '_', '~':
			in.emphasis(c, len(rest)-len(strings.TrimLeft(rest, rest[:1])))
		case '!':
			if !strings.HasPrefix(rest, "![") {
				in.copy(1)
				continue
			}
			in.bracket(2)
		case '[':
			in.bracket(1)
		case ']':
			in.closeBracket(rest)
		case '<':
			in.angle(rest)
		default:
			n := strings.IndexAny(rest, "\\`*_~![]<")
			if n < 0 {
				n = len(rest)
			}
			in.copy(n)
		}
	}
	return bytes.ReplaceAll(in.out, []byte{taken}, nil)
}

func (in *inline) copy(n int) {
	in.out = append(in.out, in.src[in.at:in.at+n]...)
	in.at += n
}

// literal writes text that no later step may read as markup.
func (in *inline) literal(s string) { in.out = append(in.out, html.EscapeString(s)...) }

func (in *inline) code(rest string) {
	n := len(rest) - len(strings.TrimLeft(rest, "`"))
	in.at += n
	if n > maxTicks || in.lonely&(1<<n) != 0 {
		in.out = append(in.out, rest[:n]...)
		return
	}
	for i := n; i < len(rest); {
		if rest[i] != '`' {
			i++
			continue
		}
		run := len(rest[i:]) - len(strings.TrimLeft(rest[i:], "`"))
		if run == n {
			in.literal(rest[n:i])
			in.at += i
			return
		}
		i += run
	}
	in.lonely |= 1 << n
	in.out = append(in.out, rest[:n]...)
}

// emphasis pairs a run of markers with the nearest open one, or leaves it open.
// Underscores within a word are part of it.
func (in *inline) emphasis(c byte, n int) {
	before, _ := utf8.DecodeLastRuneInString(in.src[:in.at])
	after, _ := utf8.DecodeRuneInString(in.src[in.at+n:])
	start, end := in.at == 0, in.at+n == len(in.src)
	opens := !end && !unicode.IsSpace(after)
	closes := !start && !unicode.IsSpace(before)
	if c == '_' {
		opens = opens && (start || !isWord(before))
		closes = closes && (end || !isWord(after))
	}
	if c == '~' && n != 2 {
		opens, closes = false, false
	}
	pos := len(in.out)
	in.copy(n)
	for closes && n > 0 {
		i := len(in.open) - 1
		for i >= 0 && in.open[i].char != c {
			i--
		}
		if i < 0 {
			break
		}
		m := &in.open[i]
		pair := min(n, m.count)
		clear(in.out[m.pos+m.count-pair : m.pos+m.count])
		clear(in.out[pos : pos+pair])
		pos, n = pos+pair, n-pair
		if m.count -= pair; m.count == 0 {
			in.open = in.open[:i]
		}
	}
	if opens && n > 0 && len(in.open) < maxMarkers {
		in.open = append(in.open, marker{c, pos, n})
	}
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

func (in *inline) bracket(n int) {
	if len(in.link) < maxMarkers {
		in.link = append(in.link, marker{'[', len(in.out), n})
	}
	in.copy(n)
}

// closeBracket keeps a link's text and drops its address. Brackets without an
// address are text.
func (in *inline) closeBracket(rest string) {
	if len(in.link) == 0 {
		in.copy(1)
		return
	}
	m := in.link[len(in.link)-1]
	in.link = in.link[:len(in.link)-1]
	n := addressEnd(rest[1:])
	if n == 0 {
		in.copy(1)
		return
	}
	clear(in.out[m.pos : m.pos+m.count])
	in.at += 1 + n
}

// addressEnd is the length of "(address 'title')" or "[reference]" at the start
// of s, or 0.
func addressEnd(s string) int {
	s = s[:min(len(s), reach)]
	if strings.HasPrefix(s, "[") {
		return strings.IndexByte(s, ']') + 1
	}
	if !strings.HasPrefix(s, "(") {
		return 0
	}
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i + 1
			}
		case '[':
			return 0
		case ' ':
			title := strings.TrimLeft(s[i:], " ")
			if title == "" || strings.IndexByte(`"'`, title[0]) < 0 {
				return 0
			}
			end := strings.IndexByte(title[1:], title[0])
			if end < 0 || !strings.HasPrefix(title[end+2:], ")") {
				return 0
			}
			return len(s) - len(title) + end + 3
		}
	}
	return 0
}

// angle keeps the address of an autolink, passes a tag on to be taken out with
// the others, and shields any other "<".
func (in *inline) angle(rest string) {
	end := strings.IndexAny(rest[1:min(len(rest), reach)], "<>") + 1
	if end > 1 && rest[end] == '>' {
		switch inner := rest[1:end]; {
		case strings.Contains(inner, ":") && !strings.ContainsAny(inner, " \t=\"/>") || strings.Contains(inner, "://") && !strings.ContainsAny(inner, " \t"):
			in.literal(inner)
			in.at += end + 1
			return
		case unicode.IsLetter(rune(inner[0])) || strings.IndexByte("/!?", inner[0]) >= 0:
			in.copy(end + 1)
			return
		}
	}
	in.literal("<")
	in.at++
}
