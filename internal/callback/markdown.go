package callback

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// markdownToText returns the text of Markdown for speech.
//
// It is not a complete Markdown parser: it runs before the credential is checked,
// and parsers such as goldmark need quadratic time for many repetitions of "[]("
// or ">". markdownToText reads each line once, with bounded lookahead. A marker
// without a closing marker is text, as in "2 * 3" and "snake_case".
func markdownToText(s string) string {
	var out bytes.Buffer
	fence := "" // the marker that opened the current code block
	for line := range strings.SplitSeq(s, "\n") {
		text := strings.TrimSpace(line)
		switch mark := codeFence.FindString(text); {
		case fence != "" && strings.HasPrefix(mark, fence) && mark == text:
			fence = ""
		case fence != "":
			out.WriteString(html.EscapeString(line))
		case mark != "":
			fence = mark
		default:
			if text = stripBlockMarkers(text); text != "" {
				out.WriteString(stripInline(text))
			}
		}
		out.WriteByte('\n')
	}
	return collapseSpace(stripTags(out.String(), "\n"))
}

// blockStarts are the first characters of lines that stripBlockMarkers changes.
const blockStarts = ">-*+0123456789[#|_=:"

var (
	// codeFence matches the start of a line that opens or closes a code block.
	codeFence = regexp.MustCompile("^(?:`{3,}|~{3,})")
	// blockMarkers matches the markers of quotes, lists and check boxes at the
	// start of a line. Its group is the marker of a heading.
	blockMarkers = regexp.MustCompile(`^(?:(?:>|[-*+] |\d{1,9}[.)] )[ \t]*)*(?:\[[ xX]\] )?(#{1,6}(?: |$))?`)
	// linkDefinition matches the start of a line such as "[name]: https://…".
	linkDefinition = regexp.MustCompile(`^\[[^\]]*\]: `)
)

// stripBlockMarkers removes the markers of quotes, lists, headings and tables from
// a line. Rules and link definitions become empty lines.
func stripBlockMarkers(s string) string {
	if s == "" || strings.IndexByte(blockStarts, s[0]) < 0 { // most lines
		return s
	}
	if isRule(strings.TrimLeft(s, "> ")) {
		return ""
	}
	markers := blockMarkers.FindStringSubmatch(s)
	s = s[len(markers[0]):]
	if markers[1] != "" {
		s = strings.TrimRight(s, "# ")
	}
	if isRule(s) || linkDefinition.MatchString(s) {
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

// inlineStripper removes the inline markup from one line of Markdown. It copies
// opening markers to out and overwrites them with zeros when it finds the closing
// ones.
type inlineStripper struct {
	src      string
	pos      int // in src
	out      []byte
	emphasis []marker           // without a closing marker yet, oldest first
	brackets []marker           // "[" and "![", likewise
	unpaired [maxTicks + 1]bool // lengths of runs of backticks that have no partner in the rest of src
	// lookahead counts the bytes and markers that were examined in addition to
	// the one pass over src. A test compares it with the bounds below.
	lookahead int
}

type marker struct {
	char  byte
	src   int
	pos   int // in out
	count int
}

const (
	removed = 0 // replaces a removed byte of out; strip removes all zeros of src first

	// Bounds that make the running time linear in the length of the text.
	maxLookahead = 1024 // bytes to the end of an address or a tag
	maxTicks     = 15   // backticks in a row
	maxMarkers   = 64   // open markers
)

// inlineMarkers are the characters that strip does not only copy.
const inlineMarkers = "\\`*_~![]<"

// stripInline removes the inline markup from one line of Markdown.
func stripInline(line string) string {
	if !strings.ContainsAny(line, inlineMarkers+"\x00") { // most lines
		return line
	}
	in := inlineStripper{src: line}
	return string(in.strip())
}

func (in *inlineStripper) strip() []byte {
	in.src = strings.ReplaceAll(in.src, "\x00", "")
	for in.pos < len(in.src) {
		rest := in.src[in.pos:]
		switch c := rest[0]; c {
		case '\\':
			if len(rest) > 1 && rest[1] < utf8.RuneSelf && unicode.In(rune(rest[1]), unicode.Punct, unicode.Symbol) {
				in.writeLiteral(rest[1:2])
				in.pos += 2
				continue
			}
			in.copy(1)
		case '`':
			in.codeSpan(rest)
		case '*', '_', '~':
			in.emphasize(c, runLength(rest))
		case '!':
			if strings.HasPrefix(rest, "![") {
				in.openBracket(2)
			} else {
				in.copy(1)
			}
		case '[':
			in.openBracket(1)
		case ']':
			in.closeBracket(rest)
		case '<':
			in.angleBracket(rest)
		default:
			n := strings.IndexAny(rest, inlineMarkers)
			if n < 0 {
				n = len(rest)
			}
			in.copy(n)
		}
	}
	return bytes.ReplaceAll(in.out, []byte{removed}, nil)
}

// runLength returns how often the first character of s is repeated.
func runLength(s string) int { return len(s) - len(strings.TrimLeft(s, s[:1])) }

func (in *inlineStripper) copy(n int) {
	in.out = append(in.out, in.src[in.pos:in.pos+n]...)
	in.pos += n
}

// writeLiteral escapes text, so that stripTags does not treat it as markup.
func (in *inlineStripper) writeLiteral(s string) { in.out = append(in.out, html.EscapeString(s)...) }

// codeSpan copies the text between two runs of backticks of the same length. A run
// without a partner is text. After a search for a partner has failed, later runs of
// that length have none either. So maxTicks limits the number of failed searches.
func (in *inlineStripper) codeSpan(rest string) {
	n := runLength(rest)
	in.pos += n
	for i := n; n <= maxTicks && !in.unpaired[n]; {
		next := strings.IndexByte(rest[i:], '`')
		if next < 0 {
			in.lookahead += len(rest)
			in.unpaired[n] = true
			break
		}
		i += next
		run := runLength(rest[i:])
		if run == n {
			in.writeLiteral(rest[n:i])
			in.pos += i
			return
		}
		i += run
	}
	in.out = append(in.out, rest[:n]...)
}

// emphasize removes a run of n markers together with the nearest open markers of
// the same character. Without any, the run opens emphasis. Underscores within a
// word are text.
func (in *inlineStripper) emphasize(c byte, n int) {
	before, _ := utf8.DecodeLastRuneInString(in.src[:in.pos])
	after, _ := utf8.DecodeRuneInString(in.src[in.pos+n:])
	start, end := in.pos == 0, in.pos+n == len(in.src)
	opens := !end && !unicode.IsSpace(after)
	closes := !start && !unicode.IsSpace(before)
	if c == '_' {
		opens = opens && (start || !isWord(before))
		closes = closes && (end || !isWord(after))
	}
	if c == '~' && n != 2 { // text, as in "~5"
		opens, closes = false, false
	}
	src, pos := in.pos, len(in.out)
	in.copy(n)
	for closes && n > 0 {
		i := len(in.emphasis) - 1
		for i >= 0 && in.emphasis[i].char != c {
			i--
		}
		in.lookahead += len(in.emphasis) - i
		if i < 0 {
			break
		}
		m := &in.emphasis[i]
		pair := min(n, m.count)
		clear(in.out[m.pos+m.count-pair : m.pos+m.count])
		clear(in.out[pos : pos+pair])
		pos, n = pos+pair, n-pair
		if m.count -= pair; m.count == 0 {
			in.emphasis = in.emphasis[:i]
		}
	}
	if opens && n > 0 && len(in.emphasis) < maxMarkers {
		in.emphasis = append(in.emphasis, marker{c, src, pos, n})
	}
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

func (in *inlineStripper) openBracket(n int) {
	if len(in.brackets) < maxMarkers {
		in.brackets = append(in.brackets, marker{'[', in.pos, len(in.out), n})
	}
	in.copy(n)
}

// closeBracket removes the brackets and the address of a link and keeps its text.
// Brackets without an address are text.
func (in *inlineStripper) closeBracket(rest string) {
	if len(in.brackets) == 0 {
		in.copy(1)
		return
	}
	m := in.brackets[len(in.brackets)-1]
	in.brackets = in.brackets[:len(in.brackets)-1]
	ahead := rest[1:min(len(rest), maxLookahead+1)]
	in.lookahead += len(ahead)
	address := linkAddress.FindString(ahead)
	if address == "" {
		in.copy(1)
		return
	}
	clear(in.out[m.pos : m.pos+m.count])
	in.pos += 1 + len(address)
}

// angleBracket replaces an autolink with its address, copies a tag, which stripTags
// removes later, and escapes any other "<".
func (in *inlineStripper) angleBracket(rest string) {
	ahead := rest[:min(len(rest), maxLookahead)]
	in.lookahead += len(ahead)
	var m []string
	if end := strings.IndexAny(ahead[1:], "<>"); end >= 0 {
		m = linkOrTag.FindStringSubmatch(ahead[:end+2])
	}
	switch {
	case m == nil:
		in.writeLiteral("<")
		in.pos++
	case m[1] != "":
		in.writeLiteral(m[1])
		in.pos += len(m[0])
	default:
		in.copy(len(m[0]))
	}
}

var (
	// linkAddress matches "(address 'title')" or "[reference]" after the text of
	// a link.
	linkAddress = regexp.MustCompile(`^(?:\[[^\]]*\]|\((?:[^\s()\[]|\([^\s()\[]*\))*(?: +(?:"[^"]*"|'[^']*'))?\))`)
	// linkOrTag matches an autolink, with its address as the group, or a tag. It does not
	// match text that ends with another "<".
	linkOrTag = regexp.MustCompile(`^<(?:([^\s<>="/]*:[^\s<>="/]*|[^\s<>]*://[^\s<>]*)|[A-Za-z/!?][^<>]*)>$`)
)
