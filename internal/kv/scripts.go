package kv

import (
	"embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// scripts are the Lua scripts that run inside the store.
//
// A file has scripts, which are global functions, and local functions, variables and constants
// that the scripts of all files can use. An empty line is between two of them. Script joins what
// one script needs, because every call creates its functions anew, which is slow: a script
// has only the functions that it uses. Those with the comment "rare" are created when one of
// them is called.
//
//go:embed lua/*.lua
var scripts embed.FS

var (
	comment  = regexp.MustCompile(`(?m)^--.*\n?| *-- .*$`)
	script   = regexp.MustCompile(`^function (\w+)\((.*)\)\n((?s).*\n)end$`)
	function = regexp.MustCompile(`^local function (\w+)`)
	constant = regexp.MustCompile(`(?m)^local ([A-Z_]+) *= (.*)\n?`)
	variable = regexp.MustCompile(`(?m)^local ([\w, ]+?)(?: =|$)`)
	// word matches names, fields with their dot, and texts.
	word = regexp.MustCompile(`'[^']*'|"[^"]*"|[.]?[A-Za-z_]\w*`)
)

// definition is a function, or variables that are declared together.
type definition struct {
	text string
	rare bool
}

// library has all scripts, by their names, and what they use.
type library struct {
	scripts     map[string]string
	definitions map[string]*definition
	constants   map[string]string // their values replace them
}

var readScripts = sync.OnceValue(func() library {
	l := library{map[string]string{}, map[string]*definition{}, map[string]string{}}
	files, _ := scripts.ReadDir("lua") // embedded, so reading cannot fail
	for _, file := range files {
		text, _ := scripts.ReadFile("lua/" + file.Name())
		// An empty line before an indented one is inside a function.
		for block := range strings.SplitSeq(strings.ReplaceAll(string(text), "\n\n  ", "\n  "), "\n\n") {
			l.add(block)
		}
	}
	return l
})

// add adds a script, a function, or the variables and constants of a paragraph.
func (l library) add(block string) {
	rare := strings.Contains(block, " -- rare\n")
	text := strings.TrimSpace(comment.ReplaceAllString(block, ""))
	if m := script.FindStringSubmatch(text); m != nil {
		if m[2] != "" {
			m[3] = fmt.Sprintf("local %s = unpack(ARGV, 1, %d)\n%s", m[2], strings.Count(m[2], ",")+1, m[3])
		}
		l.scripts[m[1]] = m[3]
		return
	}
	if m := function.FindStringSubmatch(text); m != nil {
		l.definitions[m[1]] = &definition{text, rare}
		return
	}
	for _, m := range constant.FindAllStringSubmatch(text, -1) {
		l.constants[m[1]] = m[2]
	}
	variables := &definition{text: constant.ReplaceAllString(text, "")}
	for _, m := range variable.FindAllStringSubmatch(variables.text, -1) {
		for name := range strings.SplitSeq(m[1], ", ") {
			l.definitions[name] = variables
		}
	}
}

// joined has the scripts with their own constants, by name: joining one takes about 1 ms.
var joined sync.Map

// ScriptNames returns the names of all scripts.
func ScriptNames() []string { return slices.Sorted(maps.Keys(readScripts().scripts)) }

// Script returns a script as it is sent to the store. Tests can replace constants: name, value,
// name, value … It panics if the script does not exist.
func Script(name string, constants ...string) string {
	if text, known := joined.Load(name); known && len(constants) == 0 {
		return text.(string)
	}
	l := readScripts()
	body, known := l.scripts[name]
	if !known {
		panic("no script " + name)
	}
	l.constants = maps.Clone(l.constants)
	for pair := range slices.Chunk(constants, 2) {
		if l.constants[pair[0]] == "" {
			panic("no constant " + pair[0])
		}
		l.constants[pair[0]] = pair[1]
	}
	b := builder{library: l, added: map[*definition]bool{}}
	b.require(body)
	text := l.replaceConstants("local rare\n" + b.text.String() + b.rareFunctions() + l.callRare(body))
	if len(constants) == 0 {
		joined.Store(name, text)
	}
	return text
}

// words replaces the names in a text with what f returns for them.
func words(text string, f func(name string) string) string {
	return word.ReplaceAllStringFunc(text, func(found string) string {
		if strings.ContainsAny(found[:1], `'".`) {
			return found
		}
		return f(found)
	})
}

func (l library) replaceConstants(text string) string {
	return words(text, func(name string) string {
		if value, known := l.constants[name]; known {
			return l.replaceConstants(value)
		}
		return name
	})
}

// callRare returns a text that creates rare functions when it calls one.
func (l library) callRare(text string) string {
	return words(text, func(name string) string {
		if d := l.definitions[name]; d != nil && d.rare {
			return "rare('" + name + "')"
		}
		return name
	})
}

// builder joins the definitions that a script needs, each after those that it uses: first
// all but rare functions, which it collects, then these and what only they use.
type builder struct {
	library
	text   strings.Builder
	added  map[*definition]bool
	rare   []string // rare functions that the script, or others that are not rare, call
	inRare bool     // the text is of rare functions, which call each other directly
}

// require adds what a text uses.
func (b *builder) require(text string) {
	words(text, func(name string) string {
		d := b.definitions[name]
		switch {
		case d == nil || b.added[d]: // nothing to add
		case d.rare && !b.inRare:
			if !slices.Contains(b.rare, name) {
				b.rare = append(b.rare, name)
			}
		default:
			b.added[d] = true
			b.require(d.text)
			definition := d.text
			if !b.inRare {
				definition = b.callRare(definition)
			}
			b.text.WriteString(definition + "\n")
		}
		return name
	})
}

// rareFunctions returns the function that creates all rare functions, and what only they use.
func (b *builder) rareFunctions() string {
	if len(b.rare) == 0 {
		return ""
	}
	b.text.Reset()
	b.inRare = true
	fields := ""
	for _, name := range b.rare {
		b.require(name)
		fields += name + " = " + name + ", "
	}
	return "local created\nfunction rare(name)\n  if not created then\n" + b.text.String() +
		"created = { " + fields + "}\n  end\n  return created[name]\nend\n"
}
