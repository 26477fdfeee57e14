package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/gopher-lua/parse"

	"telapi/internal/kv"
)

// luaMutants returns the mutants of a script. Each has the complete changed text.
func luaMutants(root, path string) ([]*mutant, error) {
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return nil, err
	}
	m := &luaMutator{path: path, text: string(text), tokens: luaTokens(string(text))}
	m.conditions()
	m.comparisons()
	m.calls()
	slices.SortStableFunc(m.mutants, func(a, b *mutant) int { return a.line - b.line })
	for _, found := range m.mutants {
		if _, err := parse.Parse(strings.NewReader(found.script), path); err != nil {
			return nil, fmt.Errorf("%s:%d: the mutant %q is not a script: %w", path, found.line, found.mutation, err)
		}
	}
	return m.mutants, nil
}

// luaToken is a word, number, text or operator of a script.
type luaToken struct {
	text        string
	start, end  int
	line        int
	firstOnLine bool
}

var luaTokenPattern = regexp.MustCompile(`--[^\n]*|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[A-Za-z_]\w*|\d+(?:\.\d+)?|\.\.\.|\.\.|==|~=|<=|>=|[^\s\w]`)

func luaTokens(text string) []luaToken {
	var tokens []luaToken
	line, at, newLine := 1, 0, true
	for _, place := range luaTokenPattern.FindAllStringIndex(text, -1) {
		breaks := strings.Count(text[at:place[0]], "\n")
		line, newLine = line+breaks, newLine || breaks > 0
		at = place[0]
		token := luaToken{text[place[0]:place[1]], place[0], place[1], line, newLine}
		if strings.HasPrefix(token.text, "--") {
			continue
		}
		tokens, newLine = append(tokens, token), false
	}
	return tokens
}

type luaMutator struct {
	path, text string
	tokens     []luaToken
	mutants    []*mutant
}

// replace adds a mutant with other text in place of tokens[from:to].
func (m *luaMutator) replace(from, to int, with, mutation string) {
	start, end := m.tokens[from].start, m.tokens[to-1].end
	m.mutants = append(m.mutants, &mutant{
		unit: m.path, file: m.path, line: m.tokens[from].line, text: m.line(from),
		mutation: mutation, script: m.text[:start] + with + m.text[end:], scripts: scriptsWith(m.text[:start]),
	})
}

var luaFunction = regexp.MustCompile(`(?m)^(local )?function (\w+)`)

// scriptsWith returns the names of the scripts that have the function that begins last in a text
// and has no end there; without one, those of all scripts.
func scriptsWith(before string) []string {
	matches := luaFunction.FindAllStringSubmatchIndex(before, -1)
	if len(matches) == 0 || strings.Contains(before[matches[len(matches)-1][0]:], "\nend\n") {
		return kv.ScriptNames()
	}
	last := matches[len(matches)-1]
	name := before[last[4]:last[5]]
	if last[2] < 0 { // not local
		return []string{name}
	}
	return slices.DeleteFunc(kv.ScriptNames(), func(script string) bool { return !strings.Contains(kv.Script(script), "function "+name+"(") })
}

// line returns the line of a token.
func (m *luaMutator) line(token int) string {
	return strings.TrimSpace(strings.Split(m.text, "\n")[m.tokens[token].line-1])
}

// source returns the text of tokens[from:to] in one line.
func (m *luaMutator) source(from, to int) string {
	return strings.Join(strings.Fields(m.text[m.tokens[from].start:m.tokens[to-1].end]), " ")
}

func (m *luaMutator) force(from, to int, value string) {
	if m.source(from, to) != value {
		m.replace(from, to, value, m.source(from, to)+" becomes "+value)
	}
}

// conditions makes the conditions of if, elseif and while true and false, and removes the
// operands of and and or, one at a time. A while that is always true would not end.
func (m *luaMutator) conditions() {
	for i, token := range m.tokens {
		switch token.text {
		case "if", "elseif":
			end := m.find(i+1, "then")
			m.force(i+1, end, "true")
			m.force(i+1, end, "false")
		case "while":
			m.force(i+1, m.find(i+1, "do"), "false")
		}
	}
	for start := 0; start < len(m.tokens); start++ {
		if start > 0 && !m.startsExpression(start) {
			continue
		}
		m.operands(start, m.expressionEnd(start))
	}
}

func (m *luaMutator) find(from int, text string) int {
	for m.tokens[from].text != text {
		from++
	}
	return from
}

var luaBeforeExpression = []string{"if", "elseif", "while", "until", "return", "=", "(", "{", "[", ",", ";"}

func (m *luaMutator) startsExpression(i int) bool {
	return slices.Contains(luaBeforeExpression, m.tokens[i-1].text)
}

var (
	luaOpening = []string{"(", "{", "["}
	luaClosing = []string{")", "}", "]"}
	// luaAfterExpression end an expression if they are outside of brackets.
	luaAfterExpression = []string{",", ";", "then", "do", "end", "else", "elseif", "until", "local", "return", "if", "while", "for", "repeat", "break", "function", "="}
)

// expressionEnd returns the index of the first token after the expression at start.
func (m *luaMutator) expressionEnd(start int) int {
	depth := 0
	for i := start; i < len(m.tokens); i++ {
		text := m.tokens[i].text
		switch {
		case slices.Contains(luaOpening, text):
			depth++
		case slices.Contains(luaClosing, text):
			if depth--; depth < 0 {
				return i
			}
		case depth == 0 && (slices.Contains(luaAfterExpression, text) || i > start && m.startsStatement(i)):
			return i
		}
	}
	return len(m.tokens)
}

var (
	luaWord    = regexp.MustCompile(`^[A-Za-z_'"\d]`)
	luaKeyword = []string{"and", "or", "not", "then", "do", "else", "return", "in", "end", "elseif", "if", "while", "local", "for", "function", "repeat", "until"}
)

// startsStatement returns whether a token is a word on a new line after the end of an
// expression.
func (m *luaMutator) startsStatement(i int) bool {
	if !m.tokens[i].firstOnLine || !luaWord.MatchString(m.tokens[i].text) || slices.Contains([]string{"and", "or"}, m.tokens[i].text) {
		return false
	}
	if i == 0 {
		return true
	}
	before := m.tokens[i-1].text
	return slices.Contains(luaClosing, before) || luaWord.MatchString(before) && !slices.Contains([]string{"and", "or", "not"}, before)
}

// operands removes the operands of or, and those of and, outside of brackets.
func (m *luaMutator) operands(start, end int) {
	alternatives := m.split(start, end, "or")
	for _, alternative := range alternatives {
		if len(alternatives) > 1 {
			m.force(alternative[0], alternative[1], "false")
		}
		factors := m.split(alternative[0], alternative[1], "and")
		for _, factor := range factors {
			isReply := m.source(factor[0], factor[1]) == "1" && strings.HasPrefix(m.line(factor[0]), "return ")
			if len(factors) > 1 && !isReply { // Redis replies with 1 for true
				m.force(factor[0], factor[1], "true")
			}
		}
	}
}

// split returns the parts of tokens[start:end] between an operator outside of brackets.
func (m *luaMutator) split(start, end int, operator string) [][2]int {
	var parts [][2]int
	depth, from := 0, start
	for i := start; i < end; i++ {
		switch text := m.tokens[i].text; {
		case slices.Contains(luaOpening, text):
			depth++
		case slices.Contains(luaClosing, text):
			depth--
		case depth == 0 && text == operator:
			parts = append(parts, [2]int{from, i})
			from = i + 1
		}
	}
	if from < end {
		parts = append(parts, [2]int{from, end})
	}
	return parts
}

var luaComparisons = map[string]string{"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "=="}

// comparisons moves boundaries and negates equality.
func (m *luaMutator) comparisons() {
	for i, token := range m.tokens {
		if becomes := luaComparisons[token.text]; becomes != "" {
			m.replace(i, i+1, becomes, m.source(max(0, i-3), i)+" "+becomes+" "+m.source(i+1, min(i+4, len(m.tokens)))+" in place of "+token.text)
		}
	}
}

// calls removes statements that are calls, one at a time.
func (m *luaMutator) calls() {
	for i := 0; i < len(m.tokens); i++ {
		if !luaWord.MatchString(m.tokens[i].text) || slices.Contains(luaKeyword, m.tokens[i].text) || !m.followsStatement(i) {
			continue
		}
		open := i + 1
		for open+1 < len(m.tokens) && m.tokens[open].text == "." {
			open += 2
		}
		if open >= len(m.tokens) || m.tokens[open].text != "(" {
			continue
		}
		end := m.expressionEnd(open+1) + 1
		for m.tokens[end-1].text != ")" { // a list of arguments
			end = m.expressionEnd(end) + 1
		}
		if end < len(m.tokens) && !m.startsStatement(end) && !slices.Contains(luaKeyword, m.tokens[end].text) {
			continue
		}
		m.replace(i, end, "", "without "+m.source(i, end))
	}
}

// followsStatement returns whether a token can be the first of a statement.
func (m *luaMutator) followsStatement(i int) bool {
	return i == 0 || m.startsStatement(i) || slices.Contains([]string{"then", "do", "else", "end", "repeat"}, m.tokens[i-1].text)
}
