package callback

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/sentences"
	"github.com/clipperhouse/uax29/v2/words"
)

// maxSentence is the maximum length of a sentence in characters. A longer one is cut at a
// word boundary.
const maxSentence = 300

// Splitter cuts Markdown that arrives in pieces into sentences for speech: those of
// Unicode (UAX #29), except that abbreviations and ordinals do not end one. A sentence is
// returned once the text after it shows that it is complete. It never spans two lines. The
// result depends on the text alone, not on its pieces, so that a repeated stream has
// the same sentences. The zero value is an empty text.
type Splitter struct {
	buf      []byte // without the sentences that were returned
	midLine  bool   // buf starts within a line
	fence    string // the marker that opened the current code block
	skipLine bool   // the rest of the line is the name of a code block's language
	inMarkup bool   // a sentence was cut within markup, which ends in a later one
}

// Add returns the sentences that are complete with a further piece of text.
func (s *Splitter) Add(text string) []string {
	s.buf = append(s.buf, text...)
	return s.split(false)
}

// End returns the rest of the text.
func (s *Splitter) End() []string { return s.split(true) }

// Rest returns the text that does not complete a sentence yet.
func (s *Splitter) Rest() string {
	ahead := *s
	return strings.Join(ahead.End(), " ")
}

func (s *Splitter) split(atEnd bool) (list []string) {
	for atEnd || len(s.buf) >= maxSentence || mayEndSentence(s.buf) {
		n := s.next(atEnd)
		if n == 0 {
			break
		}
		if text := s.take(n); text != "" {
			list = append(list, text)
		}
	}
	return list
}

// mayEndSentence reports whether next may find the end of a sentence in text. It is quick:
// every character outside of ASCII counts, because 。 and ؟ end sentences. A full stop at the end
// does not: whether it ends a sentence depends on the text that follows.
func mayEndSentence(text []byte) bool {
	for _, b := range bytes.TrimRight(text, ".!? ") {
		switch b {
		case '.', '!', '?', '\n', '\r':
			return true
		}
		if b >= utf8.RuneSelf {
			return true
		}
	}
	return false
}

// next returns the length of the first sentence in buf, or 0 if it is not certain yet.
func (s *Splitter) next(atEnd bool) int {
	line, complete := s.buf, atEnd
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line, complete = line[:i+1], true
	}
	// A sentence that is longer than maxSentence is cut, so that text far behind it cannot
	// change the result. Without this bound, a long line would be scanned again and again.
	view := line[:runeOffset(line, 2*maxSentence)]
	isCut := len(view) < len(line)
	wholeLine := complete && !isCut
	n := 0
	switch {
	case s.fence == "":
		n = sentenceEnd(view, wholeLine)
	case wholeLine:
		n = len(view) // a line of code
	}
	switch {
	case n == 0 && isCut:
		return wordEnd(view)
	case utf8.RuneCount(bytes.TrimSpace(view[:n])) > maxSentence:
		return wordEnd(view[:n])
	}
	return n
}

// sentenceEnd returns the length of the first sentence of a line, or 0 if it depends on
// the text that follows.
func sentenceEnd(line []byte, complete bool) int {
	// Unicode lets closing brackets follow a full stop, but knows no Markdown: "**Stop.** Go"
	// has two sentences if its markers look like brackets.
	n, masked := 0, bytes.Clone(line)
	for i, b := range masked {
		if strings.IndexByte("*_~`", b) >= 0 {
			masked[i] = ')'
		}
	}
	for n < len(line) {
		advance, _, _ := sentences.SplitFunc(masked[n:], complete) // never fails
		if advance == 0 {
			return 0
		}
		if n += advance; endsSentence(line[:n]) {
			return n
		}
	}
	return n
}

// endsSentence reports whether a sentence of Unicode is one for a listener, and not
// the text up to an abbreviation, an ordinal or a list's number, or within markup.
func endsSentence(sentence []byte) bool {
	text := bytes.TrimRightFunc(sentence, unicode.IsSpace)
	if !bytes.ContainsFunc(text, isWord) {
		return false
	}
	if before, found := bytes.CutSuffix(text, []byte(".")); found {
		word := before[len(bytes.TrimRightFunc(before, isWord)):]
		length := utf8.RuneCount(word)
		first, _ := utf8.DecodeRune(word)
		isNumber := length > 0 && len(bytes.TrimLeftFunc(word, unicode.IsDigit)) == 0
		switch {
		case length == 1 && (unicode.IsUpper(first) || unicode.IsLower(first)) && first != 'I': // an initial, or part of "z. B.", but not "So do I."
			return false
		case isNumber && length <= 2: // an ordinal: "3. Mai"
			return false
		case slices.Contains(abbreviations, strings.ToLower(string(word))):
			return false
		}
	}
	return markupIsClosed(string(text))
}

// markupIsClosed reports whether the text contains no opening marker, such as ** or [,
// without the closing one.
func markupIsClosed(text string) bool {
	if !strings.ContainsAny(text, "*_~`[") {
		return true
	}
	in := inlineStripper{src: stripBlockMarkers(strings.TrimSpace(text))}
	in.strip()
	inLink := strings.LastIndex(text, "](") > strings.LastIndexByte(text, ')') // the address of a link has no end yet
	openTicks := in.unpaired != [maxTicks + 1]bool{}
	return len(in.emphasis) == 0 && len(in.brackets) == 0 && !openTicks && !inLink
}

// abbreviations are words before a dot that rarely end a sentence, in the languages in
// which most assistants speak.
var abbreviations = strings.Fields(`
		mr mrs ms mx dr prof st mt jr sr messrs gen col maj lt cmdr sgt capt rev hon gov pres sen rep approx dept fig figs vol vols ed eds vs cf al
		jan feb apr jun jul aug sep sept oct nov dec okt dez
		bzw ca nr tel inkl exkl evtl ggf vgl sog hr fr dipl ing med phil abs kap max min mind std str zzgl bspw geb gegr
		mme mlle mgr av bd env hab
		sra srta ud uds dna pág núm tel aprox
		sig dott avv geom ecc pag
		dhr mevr mw drs bijv blz
		ул им тыс руб гг стр рис`)

// runeOffset returns the offset of the nth character, or the length of a shorter text.
func runeOffset(text []byte, n int) int {
	offset := 0
	for range n {
		_, size := utf8.DecodeRune(text[offset:])
		offset += size
	}
	return offset
}

// wordEnd returns where to cut a text that is longer than maxSentence: after the last white
// space before that length, or else at the last word boundary, or else at that length.
func wordEnd(text []byte) int {
	limit := runeOffset(text, maxSentence)
	if i := bytes.LastIndexFunc(text[:limit], unicode.IsSpace); i > 0 && len(bytes.TrimSpace(text[:i])) > 0 {
		_, size := utf8.DecodeRune(text[i:])
		return i + size
	}
	n := 0
	for word := words.FromBytes(text); word.Next() && word.End() <= limit; {
		n = word.End()
	}
	return cmp.Or(n, limit)
}

// take removes a sentence of n bytes from buf and returns its text for speech, as
// markdownToText does for a whole text. It keeps track of lines, code blocks and markup.
func (s *Splitter) take(n int) string {
	sentence := s.buf[:n]
	s.buf = s.buf[n:]
	startsLine := !s.midLine
	s.midLine = !bytes.HasSuffix(sentence, []byte("\n"))
	text := strings.TrimSpace(string(sentence))
	if s.skipLine {
		s.skipLine = s.midLine
		return ""
	}
	mark := ""
	if startsLine {
		mark = codeFence.FindString(text)
	}
	switch {
	case s.fence != "" && strings.HasPrefix(mark, s.fence) && mark == text:
		s.fence = ""
		return ""
	case s.fence != "":
		return collapseSpace(text)
	case mark != "":
		s.fence, s.skipLine = mark, s.midLine
		return ""
	}
	if startsLine {
		text = stripBlockMarkers(text)
		s.inMarkup = false
	}
	stripped := collapseSpace(stripTags(stripInline(text), "\n"))
	if s.midLine && !markupIsClosed(text) {
		s.inMarkup = true
	}
	if s.inMarkup {
		stripped = strings.TrimSpace(unpairedMarkers.Replace(stripped))
	}
	return stripped
}

// unpairedMarkers removes the markers of markup that is cut into several sentences.
var unpairedMarkers = strings.NewReplacer(" **", " ", "**", "", "__", "", "~~", "", "`", "", " *", " ", "* ", " ")
