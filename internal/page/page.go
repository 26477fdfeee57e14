// Package page selects what a list contains: whose data, and which page of it. The
// cursor of a page is the ID of its last item.
package page

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"telapi/internal/fault"
)

// Sizes of a page.
const (
	DefaultLimit = 50
	MaxLimit     = 200
)

// Query selects one page.
type Query struct {
	After string // ID of the last item of the previous page; empty: the first page
	Limit int
}

// All selects all items.
var All = Query{Limit: math.MaxInt32}

// Page is one page of a list. NextCursor is nil on the last page.
type Page[T any] struct {
	Data       []T     `json:"data"`
	NextCursor *string `json:"nextCursor"`
}

// Parse reads the query parameters cursor and limit. validID reports whether a cursor
// can be the ID of an item.
func Parse(params map[string][]string, validID func(string) bool, issues *fault.Issues) Query {
	q := Query{Limit: DefaultLimit}
	if s, given := issues.QueryValue(params, "limit"); given {
		n, err := strconv.Atoi(s)
		issues.Check(err == nil && n >= 1 && n <= MaxLimit, "/query/limit", fault.IssueValue, "limit must be a number from 1 to %d.", MaxLimit)
		q.Limit = n
	}
	cursor, given := issues.QueryValue(params, "cursor")
	q.After = cursor
	issues.Check(!given || validID(cursor), "/query/cursor", fault.IssueValue, "cursor must be the nextCursor of the previous page.")
	return q
}

// UUID returns a function that reports whether an ID is the prefix followed by a UUID.
func UUID(prefix string) func(string) bool {
	return regexp.MustCompile(`^` + prefix + `[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString
}

// Read returns one page. It reads one item more than the limit to find out whether there is
// a next page.
func Read[T any](q Query, read func(Query) ([]T, error), id func(T) string) (Page[T], error) {
	found, err := read(Query{After: q.After, Limit: q.Limit + 1})
	if err != nil {
		return Page[T]{}, fmt.Errorf("read page: %w", err)
	}
	p := Page[T]{Data: append([]T{}, found...)} // not null in JSON
	if len(found) > q.Limit {
		p.Data = p.Data[:q.Limit]
		p.NextCursor = new(id(p.Data[q.Limit-1]))
	}
	return p, nil
}

// Map returns a page with another view of its items.
func Map[T, V any](p Page[T], view func(T) V) Page[V] {
	views := make([]V, len(p.Data))
	for i, item := range p.Data {
		views[i] = view(item)
	}
	return Page[V]{views, p.NextCursor}
}
