package callback

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// entryOf returns the base of entries.
func entryOf(source string) wire.Entry {
	return wire.Entry{ChannelID: "c", At: 1, Source: source, Trace: wire.Trace{TransactionID: "t-1"}}
}

func TestHTMLToText(t *testing.T) {
	for in, want := range map[string]string{
		"Hello <b>you</b>!":                            "Hello you!",
		"a<br>b<br/>c":                                 "a\nb\nc",
		"<p>a</p><p>b</p>":                             "a\nb",
		"<ul><li>a<li>b</ul>":                          "a\nb",
		"a &amp; b &lt; c &#8364; &nbsp;d&eacute;":     "a & b < c € dé",
		"a\n   b":                                      "a b",
		"<script>x<y</script>a<style>b{}</style>c":     "ac",
		"<SCRIPT>no</SCRIPT>yes":                       "yes",
		"<script>never closed":                         "",
		"<!-- no -->yes":                               "yes",
		`<a title="<b>">x</a>`:                         "x",
		"1 < 2 and 3 > 2":                              "1 < 2 and 3 > 2",
		"<table><tr><td>a</td><td>b</td></tr></table>": "a b",
		"&lt;script&gt;said&lt;/script&gt;":            "<script>said</script>",
		"<p> </p>":                                     "",
		"<title>t</title><h1>Head</h1>text":            "Head\ntext",
	} {
		testkit.Equal(t, fmt.Sprintf("%q", in), htmlToText(in), want)
	}
}

func TestMarkdownToText(t *testing.T) {
	for in, want := range map[string]string{
		"# Head #":                            "Head",
		"#hashtag":                            "#hashtag",
		"Head\n====\ntext":                    "Head\ntext",
		"**a** *b* ***c*** __d__ _e_ ~~f~~":   "a b c d e f",
		"**a *b* c**":                         "a b c",
		"2 * 3 * 4":                           "2 * 3 * 4",
		"2*3":                                 "2*3",
		"snake_case_name and _it_":            "snake_case_name and it",
		"a~b ~~~":                             "a~b ~~~",
		"[text](https://x.example)":           "text",
		"[a **b**](<u> 'title')":              "a b",
		"[t](u \"a title\") [t][ref] [t]":     "t t [t]",
		"[wiki](https://x/a_(b))!":            "wiki!",
		"[note] (not a link)":                 "[note] (not a link)",
		"[a](not an address)":                 "[a](not an address)",
		"![alt](i.png) and ![x][y]":           "alt and x",
		"[![alt](i.png)](u)":                  "alt",
		"[ref]: https://x.example \"t\"\na":   "a",
		"`a*b*` and ``c`d``":                  "a*b* and c`d",
		"a ` b":                               "a ` b",
		"```js\n*x* <b>\n```\nafter":          "*x* <b>\nafter",
		"~~~\nx\n~~~\ny":                      "x\ny",
		"- a\n* b\n+ c\n1. d\n2) e":           "a\nb\nc\nd\ne",
		"- [ ] todo\n- [x] done":              "todo\ndone",
		"> quoted\n> > twice":                 "quoted\ntwice",
		"a\n\n---\n\n***\nb":                  "a\nb",
		"| a | b |\n|:--|--:|\n| 1 | 2 |":     "a b\n1 2",
		"<https://x.example/a_b> <a@b.c>":     "https://x.example/a_b",
		"a <b>bold</b> &amp; <br>new":         "a bold &\nnew",
		"x <y and 1<2":                        "x <y and 1<2",
		`\*kept\* \_too\_ \<b> \&amp; \\`:     `*kept* _too_ <b> &amp; \`,
		"line one\nline two":                  "line one\nline two",
		"*never closed":                       "*never closed",
		"**a*":                                "*a",
		"größe_x_y":                           "größe_x_y",
		"<script>\nalert(1)\n</script>\nsaid": "said",
		"3. ":                                 "3.",
		"1984 was":                            "1984 was",
		"\x00a":                               "a",
	} {
		testkit.Equal(t, fmt.Sprintf("%q", in), markdownToText(in), want)
	}
}

var hostileUnits = []string{
	"[", "![", "]", "](", "[](", "[a](b", "[a](b \"", "[a][", "[a]: x\n", "*", "*a ", "**a", "a**a*", "*a b_ ", "_a", "_ _", "~~a", "`", "`a``", "```\n", "\\```", "<\\``` a",
	">", "> ", "- ", "- a ", "* a\n", "1. ", "#", "# a\n", "|", "|-", "<", "<a", "<a ", "<!--", "<!", "<?", "</", "<script>", "<svg>", "<p>", "<a b='", "&", "&amp", "&#", "\\", "\n", "a\n", "  * a\n", "a ", "\x00", "((", "<table>", "<select>",
}

// hostileTexts repeats constructs that parsers with unbounded lookahead or deep
// recursion handle badly.
func hostileTexts(size int) map[string]string {
	texts := map[string]string{"nested quotes and lists": strings.Repeat("> ", size/4) + strings.Repeat("- a ", size/8)}
	for _, unit := range hostileUnits {
		texts[unit] = strings.Repeat(unit, size/len(unit))
	}
	var ticks strings.Builder
	for i := 1; ticks.Len() < size; i++ {
		fmt.Fprintf(&ticks, "a%s", strings.Repeat("`", i))
	}
	texts["growing runs of backticks"] = ticks.String()
	return texts
}

func TestMarkdownLookaheadGrowsLinearly(t *testing.T) {
	const size = 1 << 16
	lookahead := func(text string) (sum int) {
		for line := range strings.SplitSeq(text, "\n") {
			in := inlineStripper{src: line}
			in.strip()
			sum += in.lookahead
		}
		return sum
	}
	double := hostileTexts(2 * size)
	for name, text := range hostileTexts(size) {
		once, twice := lookahead(text), lookahead(double[name])
		if twice > 2*once+maxLookahead*maxLookahead {
			t.Errorf("%q: examined %d bytes, and %d if the text is twice as long; want at most twice as many plus a constant", name, once, twice)
		}
	}
}

// TestHostileHTMLUsesLittleMemory fails if the text is parsed into a tree, which
// needs more than 100 bytes for each tag.
func TestHostileHTMLUsesLittleMemory(t *testing.T) {
	for name, text := range hostileTexts(1 << 17) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		htmlToText(text)
		runtime.ReadMemStats(&after)
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > uint64(32*len(text)) {
			t.Errorf("%q: allocated %d bytes for a text of %d, want at most 32 times as many", name, allocated, len(text))
		}
	}
}

func FuzzMarkdown(f *testing.F) {
	for _, s := range []string{"**a** [b](c \"d\") `e` <f> \\* &amp;", "```\nx\n```\n|a|\n|-|", "- [x] ![a](b)", "_a_ ~~b~~ ***c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { checkText(t, s, markdownToText(s)) })
}

func FuzzHTML(f *testing.F) {
	for _, s := range []string{"<p>a<br>b &amp; c</p>", "<script>x</script><style/>y", "<!-- a --><![CDATA[b]]>", "<a b=\"<c>\">d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { checkText(t, s, htmlToText(s)) })
}

func checkText(t *testing.T, in, out string) {
	if utf8.ValidString(in) && !utf8.ValidString(out) {
		t.Errorf("%q became %q, want valid UTF-8", in, out)
	}
	testkit.Equal(t, "text without white space around it", out, strings.TrimSpace(out))
}

func FuzzParse(f *testing.F) {
	for _, commands := range commandsWithManyIssues() {
		f.Add([]byte(`{"conversation":{"identifier":{"id":"c"}},"actions":` + commands + `}`))
		f.Add([]byte(`{"commands":` + commands + `}`))
	}
	f.Add(event("config", `{"sessionParams":{"sttRetries":1,"x":2}}`))
	f.Add(event("transfer", `{"transferTarget":"sip:a@b;c=d?e=f","transferSipQueryParams":{"a":"b"}}`))
	f.Add([]byte(`{"error":{"code":"a","message":"b"}}`))
	f.Add([]byte(`{"conversation":{"identifier":{"id":"c"}},"channelData":[{"key":"a","x":1}],"actions":[{"type":"hangup"}]}`))
	rules := policy(f, "open")
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range wire.WorkItemKinds {
			result, err := Parse(kind, body, "c")
			if fault.Is(err, fault.MalformedJSON) && jsontext.Value(body).IsValid() && bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) <= 128 {
				t.Errorf("valid %s body %q: %v", kind, body, err)
			}
			if err == nil {
				result.lint(body)
				entries, _ := result.Entries(entryOf(kind.Source()), rules)
				if len(entries) == 0 {
					t.Errorf("no entries for %s body %q", kind, body)
				}
				checkRoundTrip(t, entries)
			}
		}
	})
}
