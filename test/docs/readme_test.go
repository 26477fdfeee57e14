package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// The badges are files of the repository: they work without a network and don't
// report readers to another host.
func TestBadgesAreUpToDate(t *testing.T) {
	goVersion := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(readFile(t, "go.mod"))[1]
	for label, value := range map[string]string{
		"version": strings.TrimSpace(readFile(t, "VERSION")),
		"licence": "Apache-2.0",
		"Go":      goVersion + "+",
	} {
		file := "docs/badges/" + strings.ToLower(label) + ".svg"
		checkGenerated(t, file, badge(label, value))
		if !strings.Contains(readFile(t, "README.md"), "("+file+")") {
			t.Errorf("README.md does not show %s", file)
		}
	}
}

// badge draws a label and its value in two rectangles.
func badge(label, value string) string {
	left, right := 12+7*len(label), 12+7*len(value)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[3]d" height="20" role="img" aria-label="%[4]s: %[5]s">
  <title>%[4]s: %[5]s</title>
  <rect width="%[3]d" height="20" rx="3" fill="#30507a"/>
  <path d="M3 0h%[6]dv20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#444"/>
  <g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
    <text x="%[1]d" y="14" textLength="%[7]d">%[4]s</text>
    <text x="%[2]d" y="14" textLength="%[8]d">%[5]s</text>
  </g>
</svg>
`, left/2, left+right/2, left+right, label, value, left-3, left-12, right-12)
}

// A link to another host is not checked.
func TestLinksToFilesResolve(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "deploy/*.md", "deploy/*/*.md", "examples/*/*.md", "sdk/js/*.md", ".github/*.md", ".github/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		testkit.Must(t, err)
		pages = append(pages, found...)
	}
	links := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		testkit.Must(t, err)
		for _, m := range regexp.MustCompile(`\]\(([^)\s:#]*)(?:#([^)]*))?\)`).FindAllSubmatch(text, -1) {
			links++
			file, anchor := page, string(m[2])
			if len(m[1]) > 0 {
				file = filepath.Join(filepath.Dir(page), string(m[1]))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, m[1])
			} else if anchor != "" && !slices.Contains(anchors(t, file), anchor) {
				t.Errorf("%s links to %s#%s, but the page has no such heading", page, m[1], anchor)
			}
		}
	}
	if links < 20 {
		t.Errorf("found %d links", links)
	}
}

// anchors returns the anchors that GitHub makes from the headings of a page.
func anchors(t *testing.T, page string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	testkit.Must(t, err)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllSubmatch(text, -1) {
		plain := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(string(heading[1])), "")
		list = append(list, strings.ReplaceAll(plain, " ", "-"))
	}
	return list
}
