package bot

import (
	"strings"

	"golang.org/x/net/html"
)

// unspoken are the elements whose content nobody is meant to hear.
var unspoken = map[string]bool{
	"script": true, "style": true, "title": true, "template": true, "noscript": true,
	"iframe": true, "noembed": true, "noframes": true,
}

// breaking are the elements that start a new line.
var breaking = map[string]bool{
	"br": true, "p": true, "li": true, "div": true, "tr": true, "hr": true, "ul": true, "ol": true, "dl": true, "dt": true, "dd": true,
	"h1": true, "h2": true, "h3": true, "h4": true, "h5": true, "h6": true, "table": true, "blockquote": true, "pre": true,
	"section": true, "article": true, "header": true, "footer": true,
}

// fromHTML is what remains of HTML when it is read aloud: its text with
// entities resolved, one line for each block. It tokenises and builds no tree,
// so that hostile nesting costs nothing.
func fromHTML(s string) string { return tidy(untag(s, " ")) }

// untag takes the tags out and writes newline wherever the text itself broke.
func untag(s, newline string) string {
	z := html.NewTokenizer(strings.NewReader(s))
	var out strings.Builder
	inside := ""
	for {
		kind := z.Next()
		switch kind {
		case html.ErrorToken:
			return out.String()
		case html.TextToken:
			if inside == "" {
				out.WriteString(strings.ReplaceAll(string(z.Text()), "\n", newline))
			}
		case html.StartTagToken, html.SelfClosingTagToken, html.EndTagToken:
			name, _ := z.TagName()
			tag := string(name)
			switch {
			case inside == "" && unspoken[tag] && kind != html.EndTagToken:
				inside = tag
			case inside == tag && kind == html.EndTagToken:
				inside = ""
			}
			switch {
			case breaking[tag]:
				out.WriteByte('\n')
			case tag == "td" || tag == "th":
				out.WriteByte(' ')
			}
		}
	}
}

// tidy drops empty lines and runs of white space.
func tidy(s string) string {
	var lines []string
	for line := range strings.SplitSeq(s, "\n") {
		if words := strings.Fields(line); len(words) > 0 {
			lines = append(lines, strings.Join(words, " "))
		}
	}
	return strings.Join(lines, "\n")
}
