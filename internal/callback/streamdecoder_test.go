package callback

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// decodeStream decodes a body that arrives in pieces of n bytes.
func decodeStream(mediaType, body string, n int, perDelta bool) (parts []string, s *streamDecoder, err error) {
	s = &streamDecoder{kind: wire.LLMItem, channelID: "call-1", mediaType: mediaType, perDelta: perDelta}
	for piece := range slices.Chunk([]byte(body), n) {
		added, err := s.Write(piece)
		if parts = append(parts, added...); err != nil {
			return parts, s, err
		}
	}
	added, err := s.Close()
	return append(parts, added...), s, err
}

func TestStreamIsDecodedFromAnyPieces(t *testing.T) {
	events := "\uFEFFid: 1\r\nevent: message\r\ndata: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"no\"}}]}\r\n\r\n" +
		"data: {\"choices\":[{\"delta\":{\"content\":null}}]}\n\ndata: {\"choices\":\ndata: [{\"delta\":{\"content\":\"Öl. Es\"}}]}\n\n: ping\n\ndata:[DONE]\n\nignored"
	for name, c := range map[string]struct {
		mediaType, body string
		perDelta        bool
		want            string
	}{
		"NDJSON":       {NDJSON, "\uFEFF\n{\"delta\":\"Öl.\"}\r\n \n{\"delta\":\" Es\",\"x\":1}\n{\"done\":true}\n{", false, "Öl.|Es"},
		"each delta":   {NDJSON, `{"delta":"Öl."}` + "\n" + `{"delta":""}` + "\n" + `{"delta":" Es","done":true}`, true, "Öl.| Es"},
		"event stream": {EventStream, events, false, "Öl.|Es"},
		"content in parts": {EventStream, `data: {"choices":[{"delta":{"content":[{"type":"thinking","thinking":[]},{"type":"text","text":"Öl. "},{"type":"text","text":"Es"}]}}]}` +
			"\n\ndata: [DONE]\n", false, "Öl.|Es"},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= len(c.body); n++ {
				parts, s, err := decodeStream(c.mediaType, c.body, n, c.perDelta)
				if got := strings.Join(parts, "|"); err != nil || got != c.want || *s.result.llmContent != "Öl. Es" || s.result.parts != 2 {
					t.Fatalf("in pieces of %d bytes: %q, %v, want %q", n, got, err, c.want)
				}
			}
		})
	}
}

func TestStreamNamesTheLineOfAnError(t *testing.T) {
	for body, want := range map[string]string{
		"{\"delta\":\"a\"}\n\n{\"delta\":\"b\",\"delta\":\"c\"}\n": "Line 3",
		"{\"delta\":\"\xff\"}\n":                                   "Line 1",
		"[]\n":                                                     "Line 1",
		"{\"delta\":\"a\"}\n{\"done\":1}":                          "Line 2",
		"{\"done\":true,\"commands\":{}}":                          "Line 1",
	} {
		if _, _, err := decodeStream(NDJSON, body, 5, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", body, err, want)
		}
	}
}

func TestErrorOfAModelEndsTheAnswer(t *testing.T) {
	for members, code := range map[string]string{
		`"code":"rate\u005flimit","type":"t"`:       "rate_limit",
		`"code":429`:                                "429",
		`"code":{"reason":"x"},"type":"overloaded"`: "overloaded",
		`"code":null`:                               "model_error",
	} {
		_, s, err := decodeStream(EventStream, `{"error":{"message":"m",`+members+`}}`, 7, false)
		if err != nil {
			t.Fatalf("%s: %v", members, err)
		}
		testkit.Equal(t, members, string(s.result.failure.Error), `{"code":"`+code+`","message":"m"}`)
	}
}

func FuzzStream(f *testing.F) {
	for _, body := range []string{"{\"delta\":\"a. B\"}\n{\"done\":true}", "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n", "{\"error\":{\"message\":\"x\"}}", "{\"done\":true,\"error\":{\"code\":\"a\",\"message\":\"b\"}}"} {
		f.Add(body, 3, true)
		f.Add(body, 3, false)
	}
	f.Fuzz(func(t *testing.T, body string, n int, events bool) {
		if len(body) == 0 || len(body) > 10_000 {
			return
		}
		mediaType := map[bool]string{true: EventStream, false: NDJSON}[events]
		whole, a, errA := decodeStream(mediaType, body, len(body), false)
		pieces, b, errB := decodeStream(mediaType, body, 1+(n&0xff), false)
		if (errA == nil) != (errB == nil) || errA == nil && !slices.Equal(whole, pieces) || a.Done() != b.Done() {
			t.Errorf("%q: at once %q, %v; in pieces %q, %v", body, whole, errA, pieces, errB)
		}
		if errA != nil && fault.From(errA).Code == fault.Internal {
			t.Errorf("%q: %v", body, errA)
		}
		for _, part := range whole {
			if !utf8.ValidString(part) || part == "" {
				t.Errorf("%q: part %q", body, part)
			}
		}
	})
}

// splitText returns the sentences of a text that arrives in pieces of n characters, or at once.
func splitText(text string, n int) (list []string) {
	var s Splitter
	for piece := range slices.Chunk([]rune(text), max(n, 1)) {
		if n > 0 {
			list = append(list, s.Add(string(piece))...)
		}
	}
	if n == 0 {
		list = s.Add(text)
	}
	return append(list, s.End()...)
}

func TestTextIsCutIntoSentences(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"two sentences", "Hello there. How are you? Fine!", "Hello there.|How are you?|Fine!"},
		{"no end", "Hello there", "Hello there"},
		{"blank", " \n\n ", ""},
		{"lower case after a dot", "It costs approx. five euros. Is that fine?", "It costs approx. five euros.|Is that fine?"},
		{"titles", "Dr. Smith and Mrs. Jones are in. Please wait.", "Dr. Smith and Mrs. Jones are in.|Please wait."},
		{"initials", "J. R. R. Tolkien wrote it. So did I. Really.", "J. R. R. Tolkien wrote it.|So did I.|Really."},
		{"countries", "The U.S. Army called.", "The U.S. Army called."},
		{"German abbreviations", "Das gilt z. B. Montags, d. h. Sie kommen bzw. Rufen an. Gut?", "Das gilt z. B. Montags, d. h. Sie kommen bzw. Rufen an.|Gut?"},
		{"ordinals", "Am 3. Mai um 9 Uhr. Passt das?", "Am 3. Mai um 9 Uhr.|Passt das?"},
		{"a title in quotes", "Das ist „Dr. Müller“ am Telefon.", "Das ist „Dr. Müller“ am Telefon."},
		{"an ordinal after a hard space", "Am\u00a03. Mai kommt er.", "Am 3. Mai kommt er."},
		{"a link definition with sentences", "[*a]: \u2028Foo! Bar\n[`a! x]: b! C\nEnd", "Bar|C|End"},
		{"markers in a tag and in an address", "A <b *c! d> E! F\n[a](b \"*c! d\") E! F", "A E!|F|a E!|F"},
		{"decimals", "Pi is 3.14159. It is 1.000.000,50 EUR. Version v2.1 is out.", "Pi is 3.14159.|It is 1.000.000,50 EUR.|Version v2.1 is out."},
		{"times and domains", "See example.com at 5.30 today. Bye.", "See example.com at 5.30 today.|Bye."},
		{"ellipses", "Well... maybe. Wait… What? So... Yes.", "Well... maybe.|Wait… What?|So...|Yes."},
		{"quotes", "He said \"Stop.\" Then he left. „Halt!“ Sie ging. «Oui.» Bien.", "He said \"Stop.\"|Then he left.|„Halt!“|Sie ging.|«Oui.»|Bien."},
		{"brackets", "Fine (as always). Good.", "Fine (as always).|Good."},
		{"several marks", "Really?! No way!!! Yes.", "Really?!|No way!!!|Yes."},
		{"Spanish", "¿Qué tal? ¡Bien! El Sr. López vive aquí.", "¿Qué tal?|¡Bien!|El Sr. López vive aquí."},
		{"Russian", "Привет. Как дела? Хорошо.", "Привет.|Как дела?|Хорошо."},
		{"Chinese", "你好。我是助手！有问题吗？好的", "你好。|我是助手！|有问题吗？|好的"},
		{"Japanese", "「はい。」と言った。次です。", "「はい。」|と言った。|次です。"},
		{"Hindi", "नमस्ते। आप कैसे हैं?", "नमस्ते।|आप कैसे हैं?"},
		{"Arabic", "مرحبا. كيف حالك؟ بخير.", "مرحبا.|كيف حالك؟|بخير."},
		{"Thai has no marks", "สวัสดีครับ ยินดีต้อนรับ", "สวัสดีครับ ยินดีต้อนรับ"},
		{"lines", "One\nTwo\r\n\nThree. Four", "One|Two|Three.|Four"},
		{"emphasis across sentences", "**First. Second.** Third. A *b* c.", "First. Second.|Third.|A b c."},
		{"snake case and products", "Use snake_case. Then 2 * 3 is 6. Ok.", "Use snake_case.|Then 2 * 3 is 6. Ok."},
		{"links", "See [the docs. Really](https://a.b/c?d=e. F). Next.", "See [the docs. Really](https://a.b/c?d=e. F).|Next."},
		{"a link", "See [the docs](https://a.b/c). Next.", "See the docs.|Next."},
		{"code", "Run `go test. Now` first. Then wait.", "Run go test. Now first.|Then wait."},
		{"lists", "Options:\n1. Red. Warm.\n2. Blue\n- [x] Done\n", "Options:|Red.|Warm.|Blue|Done"},
		{"headings and rules", "# Title #\n---\nText.\n| a | b |\n|---|---|\n", "Title|Text.|a b"},
		{"a code block", "Do:\n```go\nx := 1. Y\n*p = 2\n```\nDone. Bye.", "Do:|x := 1. Y|*p = 2|Done.|Bye."},
		{"a code block with other marks", "````sh\n```\n~~~\n````go\nx\n````\nDone.", "```|~~~|````go|x|Done."},
		{"an indented code block", "  ~~~\n# x. Y\n  ~~~ \n# Zoo. A", "# x. Y|Zoo.|A"},
		{"code without an end", "```\n# x. Y", "# x. Y"},
		{"a code block without lines", "Do:\n```go", "Do:"},
		{"marks of code within a line", "Run ```a. B``` now! ```c``` too. Go", "Run a. B now!|c too.|Go"},
		{"markers within a line", "Take it: yes! # 5 is first. > 6 is next. 1. Good. - no", "Take it: yes!|# 5 is first. > 6 is next.|1. Good. - no"},
		{"numbers and letters", "It was 1984. On 12. May or 123. Is it I? x. Y. Go", "It was 1984.|On 12. May or 123.|Is it I?|x. Y. Go"},
		{"open markup", "Take [a. B](c. D\n**a. B\nc.** Use ~~d. E\nFoo. G", "Take [a. B](c. D|**a. B|c.**|Use ~~d. E|Foo.|G"},
		{"marks alone", "? ! .\n... Hi. You", "? ! .|... Hi.|You"},
		{"carriage returns", "One\r\nTwo.\rThree. Dr\rFour", "One|Two.|Three.|Dr|Four"},
		{"one character as a word", "他说 好. Next", "他说 好.|Next"},
		{"tags", "A <b>bold</b> move. One &lt; two <br> ok.", "A bold move.|One < two\nok."},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{0, 1, 2, 3, 7, 50} {
				testkit.Equal(t, fmt.Sprintf("in pieces of %d characters", n), strings.Join(splitText(c.text, n), "|"), c.want)
			}
		})
	}
}

func TestSentenceIsReturnedWithTheFirstWordAfterIt(t *testing.T) {
	var s Splitter
	for _, c := range []struct{ add, want, rest string }{
		{"It is 3", "", "It is 3"}, {".", "", "It is 3."}, {"5 **degrees", "", "It is 3.5 degrees"}, {"**.", "", "It is 3.5 degrees."}, {" ", "", "It is 3.5 degrees."},
		{"T", "It is 3.5 degrees.", "T"}, {"ake a coat!\n", "Take a coat!", ""}, {"好。", "", "好。"}, {"吗", "好。", "吗"},
	} {
		if got, rest := strings.Join(s.Add(c.add), "|"), s.Rest(); got != c.want || rest != c.rest {
			t.Errorf("after %q: %q and %q, want %q and %q", c.add, got, rest, c.want, c.rest)
		}
	}
}

func TestLongSentenceIsCutBetweenWords(t *testing.T) {
	for name, c := range map[string]struct{ text, join string }{
		"words":            {strings.Repeat("lorem ipsum dolor, ", 100), " "},
		"emphasis":         {"**" + strings.Repeat("very bold text ", 50) + "end** done.", " "},
		"Chinese":          {strings.Repeat("中文", 500), ""},
		"a very long word": {strings.Repeat("x", 5000), ""},
		"Thai":             {strings.Repeat("สวัสดี", 100), ""},
	} {
		t.Run(name, func(t *testing.T) {
			list := splitText(c.text, 5)
			for _, part := range list {
				if utf8.RuneCountInString(part) > maxSentence {
					t.Errorf("a part has %d characters", utf8.RuneCountInString(part))
				}
			}
			if got, want := strings.Join(list, c.join), markdownToText(c.text); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestSentenceHasAtMost300Characters(t *testing.T) {
	for _, c := range []struct{ text, want string }{ // lengths of the sentences
		{strings.Repeat("x", 299) + ". Next", "300|4"},
		{strings.Repeat("aa ", 99) + "ab. Next", "300|4"},
		{strings.Repeat("x", 300) + ". Next", "300|6"},
		{strings.Repeat("中", 299) + "。Next", "300|4"},
		{strings.Repeat("中", 300) + "。Next", "300|5"},
		{strings.Repeat("x", 600) + ". Next", "300|300|6"},
		{strings.Repeat("x", 290) + "\u00a0" + strings.Repeat("y", 600) + ". Next", "290|300|300|6"},
		{strings.Repeat("abcdef,", 43) + ". Next", "300|7"},
		{strings.Repeat("abcdefgh,", 34) + ". Next", "297|10|4"},
		{strings.Repeat("ä ", 149) + "bc. Next", "297|3|4"},
		{strings.Repeat(" ", 800) + "bc. Next", "3|4"},
		{strings.Repeat(" ", 12) + strings.Repeat("ab,", 110) + "Next", "288|46"},
		{"b" + strings.Repeat(" ", 700) + "bc. Next", "1|3|4"},
		{"**" + strings.Repeat("very bold ", 40) + "** *and `x` c*. Next", "294|114|4"},
		{"**" + strings.Repeat("bold ", 80) + "\n- 2 * 3", "294|104|5"},
		{"```\n" + strings.Repeat("x. ", 150) + "\nAB. C\n```\nNext. B", "299|149|5|5|1"},
	} {
		for _, n := range []int{0, 1, 7} {
			var lengths []string
			for _, sentence := range splitText(c.text, n) {
				lengths = append(lengths, fmt.Sprint(utf8.RuneCountInString(sentence)))
			}
			testkit.Equal(t, fmt.Sprintf("%.20q… in pieces of %d characters", c.text, n), strings.Join(lengths, "|"), c.want)
		}
	}
}

func TestWorkToFindSentencesGrowsLinearly(t *testing.T) {
	examined := func(unit string, size, piece int) int {
		var s Splitter
		text := strings.Repeat(unit, size/len(unit))
		for i := 0; i < len(text); i += piece {
			s.Add(text[i:min(len(text), i+piece)])
		}
		return s.examined
	}
	const size, view = 1 << 14, 2 * maxSentence
	for unit, limit := range map[string]int{ // for each byte of the text
		"A!": 3 * view, "A! ": 3 * view, // each sentence needs a view
		"[a! ": 64, "[a*! ": 64, "[<a>! ": 64, "[a>b<!": 64, "`[a! ": 64, "\r": 64, "\n": 64, "a": 64,
	} {
		for _, piece := range []int{size, 16} {
			once, twice := examined(unit, size, piece), examined(unit, 2*size, piece)
			if once > limit*size || twice > 2*once+100*view {
				t.Errorf("%q in pieces of %d bytes: examined %d bytes, and %d if the text is twice as long; want at most %d, and twice as many", unit, piece, once, twice, limit*size)
			}
		}
	}
}

func TestInvalidUTF8IsCutIntoSentences(t *testing.T) {
	var s Splitter
	testkit.Equal(t, "sentences", s.Add("**Hi\xff\xff\xff!** Next"), []string{"Hi\xff\xff\xff!"})
}

func TestLongSentenceIsCutBeforeItsEnd(t *testing.T) {
	var s Splitter
	testkit.Equal(t, "sentences", len(s.Add(strings.Repeat("x", 2*maxSentence))), 0)
	testkit.Equal(t, "sentences after one more character", len(s.Add("x")), 1)
}

func FuzzSentencesDependOnTextAlone(f *testing.F) {
	for _, text := range []string{"Hello. World", "**a. b** c\n```go\nx. Y\n```\n- z", strings.Repeat("a. ", 200), strings.Repeat("`", 700), "你好。" + strings.Repeat("中", 700)} {
		f.Add(text, 1)
	}
	f.Fuzz(func(t *testing.T, text string, n int) {
		if len(text) > 10_000 || !utf8.ValidString(text) {
			return
		}
		n = 1 + (n&0xff)%40
		if a, b := splitText(text, 0), splitText(text, n); !slices.Equal(a, b) {
			t.Errorf("%q\nat once:   %q\nin pieces of %d: %q", text, a, n, b)
		}
	})
}
