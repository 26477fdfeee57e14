package audit

import (
	"bytes"
	"cmp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// Bounds of an entry's details. The author of a change decides how large it is.
const (
	maxDetails = 2 << 10 // bytes
	maxText    = 200     // bytes of a path or value; the rest is cut
	maxDepth   = 8       // of the members that are compared one by one
)

// changes are the differences between two versions of what an entry is about.
type changes struct {
	Changes []change `json:"changes,omitempty"`
	More    int      `json:"more,omitzero"` // number of changes that are not listed

	bytes int // of Changes
}

// change is the old and the new value of one member.
type change struct {
	Path string         `json:"path"`          // a JSON Pointer
	From jsontext.Value `json:"from,omitzero"` // absent if the member is new
	To   jsontext.Value `json:"to,omitzero"`   // absent if the member was removed
}

// Unchanged reports whether the two versions of an entry were equal.
func (e Entry) Unchanged() bool { return string(e.Details) == "{}" }

// compare returns the differences between two versions. nil stands for no version.
func compare(before, after any) (c changes) {
	var empty any = struct{}{} // each member of the other version is then new or removed
	c.addDifferences(encode(cmp.Or(before, empty)), encode(cmp.Or(after, empty)), "", 0)
	return c
}

// addDifferences adds the differences between two values, member by member. A nil value
// is absent.
func (c *changes) addDifferences(from, to jsontext.Value, path string, depth int) {
	if bytes.Equal(from, to) {
		return
	}
	olds, news := members(from), members(to)
	kindChanged := from != nil && to != nil && from.Kind() != to.Kind()
	haveMembers := len(olds)+len(news) > 0
	if kindChanged || depth == maxDepth || !haveMembers {
		c.add(change{path, shorten(from), shorten(to)})
		return
	}
	byName := map[string]jsontext.Value{}
	for _, m := range news {
		byName[m.name] = m.value
	}
	for _, m := range olds {
		c.addDifferences(m.value, byName[m.name], join(path, m.name), depth+1)
		delete(byName, m.name)
	}
	for _, m := range news {
		if _, isAdded := byName[m.name]; isAdded {
			c.addDifferences(nil, m.value, join(path, m.name), depth+1)
		}
	}
}

func (c *changes) add(d change) {
	const syntax = len(`{"path":"","from":,"to":},`)
	size := syntax + len(strconv.Quote(d.Path)) + len(d.From) + len(d.To)
	if c.bytes+size > maxDetails {
		c.More++
		return
	}
	c.bytes += size
	c.Changes = append(c.Changes, d)
}

type member struct {
	name  string
	value jsontext.Value
}

// members returns the members of an object, or the elements of an array by index.
func members(v jsontext.Value) (all []member) {
	for name, value := range strictjson.Members(v) {
		all = append(all, member{name, value.Clone()})
	}
	for i, value := range strictjson.Elements(v) {
		all = append(all, member{strconv.Itoa(i), value.Clone()})
	}
	return all
}

// join appends a name to a JSON Pointer. Long names and pointers are cut.
func join(path, name string) string { return cut(fault.Pointer(path, cut(name))) }

// shorten returns a value, or the beginning of a long one as a string.
func shorten(v jsontext.Value) jsontext.Value {
	if len(v) <= maxText {
		return v
	}
	text := []byte(v)
	if v.Kind() == '"' {
		text, _ = jsontext.AppendUnquote(nil, v) // cannot fail: v is valid
	}
	quoted, _ := jsontext.AppendQuote(nil, cut(string(text))) // cannot fail: it is valid UTF-8
	return quoted
}

// cut returns the first maxText bytes of a text, with an ellipsis if it is longer.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…" // without half a character
}
