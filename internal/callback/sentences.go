package callback

import (
	"bytes"
	"cmp"
	"math"
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
	scan     scan   // of the first sentence in buf
	// examined counts the bytes that were read to find the ends of sentences. A test compares it
	// with the length of the text.
	examined int
}

// Add returns the sentences that are complete with a further piece of text.
func (s *Splitter) Add(text string) []string { return s.add(text, math.MaxInt) }

// add is like Add, but returns at most limit sentences and leaves the others to the next call.
func (s *Splitter) add(text string, limit int) []string {
	s.buf = append(s.buf, text...)
	return s.split(false, limit)
}

// End returns the rest of the text.
func (s *Splitter) End() []string { return s.split(true, math.MaxInt) }

// Rest returns the text that does not complete a sentence yet.
func (s *Splitter) Rest() string {
	ahead := *s
	return strings.Join(ahead.End(), " ")
}

func (s *Splitter) split(atEnd bool, limit int) (list []string) {
	for len(list) < limit && (atEnd || len(s.buf) >= maxSentence || mayEndSentence(s.buf)) {
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
	// A sentence that is longer than maxSentence is cut, so that text far behind it cannot
	// change the result. Without this bound, a long text would be scanned again and again.
	line, complete := s.buf[:min(len(s.buf), 2*maxSentence*utf8.UTFMax+1)], atEnd // one byte more than view may have
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line, complete = line[:i+1], true
	}
	view := line[:runeOffset(line, 2*maxSentence)]
	s.examined += len(line)
	isCut := len(view) < len(line)
	wholeLine := complete && !isCut
	n := 0
	switch {
	case s.fence == "":
		n = s.sentenceEnd(view, wholeLine)
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
// the text that follows. Then scan keeps what is certain.
func (s *Splitter) sentenceEnd(line []byte, complete bool) int {
	// Unicode lets closing brackets follow a full stop, but knows no Markdown: "**Stop.** Go"
	// has two sentences if its markers look like brackets.
	masked := bytes.Clone(line[s.scan.length:])
	for i, b := range masked {
		if strings.IndexByte("*_~`", b) >= 0 {
			masked[i] = ')'
		}
	}
	s.examined += len(masked)
	for len(masked) > 0 {
		advance, _, _ := sentences.SplitFunc(masked, complete) // never fails
		if advance == 0 {
			return 0
		}
		masked = masked[advance:]
		if s.endsSentence(line[:s.scan.length+advance]) {
			break
		}
	}
	return s.scan.length
}

// scan describes the start of a line: whole sentences of Unicode that do not end one for a listener.
type scan struct {
	length  int
	hasWord bool
	// One of the closers must follow the first so many bytes before their markup is closed. It is
	// not known to be open if there are none.
	open    int
	closers string
}

// endsSentence extends scan by a sentence of Unicode. It reports whether that ends one for a
// listener, and is not the text up to an abbreviation, an ordinal or a list's number, or within
// markup.
func (s *Splitter) endsSentence(sentence []byte) bool {
	known := &s.scan
	known.hasWord = known.hasWord || bytes.ContainsFunc(sentence[known.length:], isWord)
	known.length = len(sentence)
	if !known.hasWord {
		return false
	}
	text := bytes.TrimRightFunc(sentence, unicode.IsSpace)
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
	// The bytes before are examined too, because "]:" may become the start of a link definition.
	if known.closers != "" && !bytes.ContainsAny(text[known.open-len("]:"):], known.closers) {
		return false
	}
	s.examined += len(text)
	known.open, known.closers = len(text), openMarkup(string(text))
	return known.closers == ""
}

// openMarkup returns "" if the text contains no opening marker, such as ** or [, without the
// closing one. Otherwise one of the returned characters must follow before the markup is closed.
func openMarkup(text string) (closers string) {
	if !strings.ContainsAny(text, "*_~`[") {
		return ""
	}
	in := inlineStripper{src: stripBlockMarkers(strings.TrimSpace(text))}
	in.strip()
	at := len(in.src) // of the marker, if known
	switch {
	case in.unpaired != [maxTicks + 1]bool{}:
		closers = "`]" // "]: " if the text is the start of a link definition
	case len(in.brackets) > 0:
		closers, at = "]", in.brackets[0].src
	case len(in.emphasis) > 0:
		closers, at = string(in.emphasis[0].char), in.emphasis[0].src // closing it closes the others
	case strings.LastIndex(text, "](") > strings.LastIndexByte(text, ')'): // the address of a link has no end yet
		closers = ")"
	default:
		return ""
	}
	if i := strings.LastIndexAny(in.src, "<>"); i >= 0 && i < at && in.src[i] == '<' {
		closers += ">" // of a tag that contains the marker
	}
	if strings.Contains(text, "]") {
		closers += "])" // of an address that contains the marker, or of a link definition
	}
	return closers
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
	for range min(n, len(text)) {
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
	s.scan = scan{}
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
	if s.midLine && openMarkup(text) != "" {
		s.inMarkup = true
	}
	if s.inMarkup {
		stripped = strings.TrimSpace(unpairedMarkers.Replace(stripped))
	}
	return stripped
}

// unpairedMarkers removes the markers of markup that is cut into several sentences.
var unpairedMarkers = strings.NewReplacer(" **", " ", "**", "", "__", "", "~~", "", "`", "", " *", " ", "* ", " ")
