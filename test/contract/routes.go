package contract

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// Route is one route of the server as api/openapi.yaml must describe it.
type Route struct {
	Method string
	Path   string
	Scope  string // x-required-scope; empty: none
	Tier   string // x-rate-limit-tier; empty: not limited
	Params string // names of the query parameters, sorted, with spaces between them
}

// CompareRoutes fails t for every route that api/openapi.yaml does not list or
// describes differently, and for every operation that is not a route.
func CompareRoutes(t testing.TB, routes []Route) {
	t.Helper()
	c, err := parsed()
	if err != nil {
		t.Fatalf("read api/openapi.yaml: %v", err)
	}
	described := c.routes()
	for _, r := range routes {
		r.Path = strings.TrimSuffix(r.Path, "{$}") // OpenAPI has no subtree patterns
		name := r.Method + " " + r.Path
		d, listed := described[name]
		switch {
		case !listed:
			t.Errorf("%s is a route, but api/openapi.yaml does not list it", name)
		case d != r:
			t.Errorf("%s: the route has scope %q, tier %q and parameters %q, api/openapi.yaml has %q, %q and %q", name, r.Scope, r.Tier, r.Params, d.Scope, d.Tier, d.Params)
		}
		delete(described, name)
	}
	for _, name := range slices.Sorted(maps.Keys(described)) {
		t.Errorf("api/openapi.yaml lists %s, but it is not a route", name)
	}
}

func (c *Checker) routes() map[string]Route {
	described := map[string]Route{}
	for path, item := range c.doc.Paths.Map() {
		for method, op := range item.Operations() {
			var params []string
			for _, p := range op.Parameters {
				if p.Value.In == openapi3.ParameterInQuery {
					params = append(params, p.Value.Name)
				}
			}
			slices.Sort(params)
			described[method+" "+path] = Route{method, path, extension(op, "x-required-scope"), extension(op, "x-rate-limit-tier"), strings.Join(params, " ")}
		}
	}
	return described
}

func extension(op *openapi3.Operation, name string) string {
	value, _ := op.Extensions[name].(string)
	return value
}
