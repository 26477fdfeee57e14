package callback

import (
	"slices"
	"strings"

	"golang.org/x/net/html"
)

// silentElements have content that is not spoken.
var silentElements = strings.Fields("script style title template noscript iframe noembed noframes")

// blockElements start a new line.
var blockElements = strings.Fields("br p li div tr hr ul ol dl dt dd h1 h2 h3 h4 h5 h6 table blockquote pre section article header footer")

// htmlToText returns the text of HTML for speech, one line per block element.
// Entities are decoded.
func htmlToText(s string) string { return collapseSpace(stripTags(s, " ")) }

// stripTags removes all tags and replaces each line break in the text with
// newline. It uses a tokenizer instead of a parser, because deeply nested elements
// are expensive to parse.
func stripTags(s, newline string) string {
	if !strings.ContainsAny(s, "<&\r") { // most sentences: a tokenizer has a buffer of 4 KiB
		return strings.ReplaceAll(s, "\n", newline)
	}
	z := html.NewTokenizer(strings.NewReader(s))
	var out strings.Builder
	silent := "" // the outermost silent element that is open
	for {
		kind := z.Next()
		switch kind {
		case html.ErrorToken:
			return out.String()
		case html.TextToken:
			if silent == "" {
				out.WriteString(strings.ReplaceAll(string(z.Text()), "\n", newline))
			}
		case html.StartTagToken, html.SelfClosingTagToken, html.EndTagToken:
			name, _ := z.TagName()
			tag := string(name)
			switch {
			case silent == "" && slices.Contains(silentElements, tag) && kind != html.EndTagToken:
				silent = tag
			case silent == tag && kind == html.EndTagToken:
				silent = ""
			}
			switch {
			case slices.Contains(blockElements, tag):
				out.WriteByte('\n')
			case tag == "td" || tag == "th":
				out.WriteByte(' ')
			}
		}
	}
}

// collapseSpace removes empty lines and runs of white space.
func collapseSpace(s string) string {
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, strings.Join(words, " "))
		}
	}
	return strings.Join(lines, "\n")
}
