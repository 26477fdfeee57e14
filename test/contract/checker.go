package contract

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/oasdiff/yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"telapi/internal/fault"
)

// Checker compares responses with an OpenAPI description. All schemas are
// compiled. A Checker is safe for concurrent use.
type Checker struct {
	doc            *openapi3.T
	paths          *http.ServeMux // matches paths as the server does
	unlistedPath   *response
	unlistedMethod *response
}

// pathItem is one path of the description. It is an http.Handler only so that a
// ServeMux can find it.
type pathItem struct {
	operations map[string]operation // by method
}

func (*pathItem) ServeHTTP(http.ResponseWriter, *http.Request) {}

// optional reports whether a deployment can disable the path. A disabled path
// returns 404 to all methods.
func (p *pathItem) optional() bool {
	for _, op := range p.operations {
		if op[http.StatusNotFound] == nil {
			return false
		}
	}
	return true
}

type operation map[int]*response // by status

type response struct {
	headers map[string]header
	content map[string]*jsonschema.Schema // by media type; nil: any bytes
}

type header struct {
	required bool
	integer  bool
	schema   *jsonschema.Schema
}

// New reads an OpenAPI 3.1 file.
func New(file []byte) (*Checker, error) {
	doc, err := openapi3.NewLoader().LoadFromData(file)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("validate: %w", err)
	}
	schemas, err := newSchemas(file)
	if err != nil {
		return nil, fmt.Errorf("read schemas: %w", err)
	}
	c := &Checker{doc: doc, paths: http.NewServeMux()}
	for template, item := range doc.Paths.Map() {
		described := &pathItem{map[string]operation{}}
		for method, op := range item.Operations() {
			at := pointer("paths", template, strings.ToLower(method), "responses")
			if described.operations[method], err = schemas.operation(op.Responses, at); err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, template, err)
			}
		}
		if strings.HasSuffix(template, "/") {
			template += "{$}" // the path without its subtree
		}
		c.paths.Handle(template, described)
	}
	for name, into := range map[string]**response{"NotFound": &c.unlistedPath, "MethodNotAllowed": &c.unlistedMethod} {
		ref := doc.Components.Responses[name]
		if ref == nil {
			return nil, fmt.Errorf("components/responses/%s is missing", name)
		}
		if *into, err = schemas.response(ref, pointer("components", "responses", name)); err != nil {
			return nil, fmt.Errorf("response %s: %w", name, err)
		}
	}
	return c, nil
}

// expected returns the documented response for a request and a status, or an
// error if the status is not documented.
func (c *Checker) expected(req *http.Request, status int) (*response, error) {
	item := c.item(req)
	if item == nil {
		return unlisted(c.unlistedPath, status, http.StatusNotFound, "path")
	}
	method := req.Method
	if _, listed := item.operations[method]; !listed && method == http.MethodHead {
		method = http.MethodGet
	}
	op, listed := item.operations[method]
	if !listed && status == http.StatusNotFound && item.optional() {
		return c.unlistedPath, nil
	}
	if !listed {
		return unlisted(c.unlistedMethod, status, http.StatusMethodNotAllowed, "method")
	}
	if op[status] == nil {
		return nil, fmt.Errorf("the status is not documented for this operation")
	}
	return op[status], nil
}

// item returns the path item of a request, or nil if the path is not listed.
// Unclean paths such as //health are never listed.
func (c *Checker) item(req *http.Request) *pathItem {
	if p := req.URL.Path; p != "/" && path.Clean(p) != strings.TrimSuffix(p, "/") {
		return nil
	}
	handler, _ := c.paths.Handler(req)
	item, _ := handler.(*pathItem)
	return item
}

func unlisted(r *response, status, want int, what string) (*response, error) {
	if status != want {
		return nil, fmt.Errorf("this %s is not listed, so the status must be %d", what, want)
	}
	return r, nil
}

// schemas compiles the JSON Schemas of a description in place, so that their
// references resolve.
type schemas struct{ compiler *jsonschema.Compiler }

const resource = "openapi.json"

func newSchemas(file []byte) (*schemas, error) {
	asJSON, err := yaml.YAMLToJSON(file)
	if err != nil {
		return nil, err
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	return &schemas{compiler}, compiler.AddResource(resource, doc)
}

func (s *schemas) operation(responses *openapi3.Responses, at string) (operation, error) {
	op := operation{}
	for code, ref := range responses.Map() {
		status, err := strconv.Atoi(code)
		if err != nil {
			return nil, fmt.Errorf("invalid status %q: list every status", code)
		}
		if op[status], err = s.response(ref, at+pointer(code)); err != nil {
			return nil, fmt.Errorf("%d: %w", status, err)
		}
	}
	return op, nil
}

func (s *schemas) response(ref *openapi3.ResponseRef, at string) (*response, error) {
	at = follow(ref.Ref, at)
	r := &response{map[string]header{}, map[string]*jsonschema.Schema{}}
	for name, h := range ref.Value.Headers {
		schema, err := s.compile(follow(h.Ref, at+pointer("headers", name)) + "/schema")
		if err != nil {
			return nil, err
		}
		r.headers[name] = header{h.Value.Required, h.Value.Schema.Value.Type.Is("integer"), schema}
	}
	for mediaType, m := range ref.Value.Content {
		r.content[mediaType] = nil
		if m.Schema == nil {
			continue
		}
		schema, err := s.compile(at + pointer("content", mediaType, "schema"))
		if err != nil {
			return nil, err
		}
		r.content[mediaType] = schema
	}
	return r, nil
}

func (s *schemas) compile(at string) (*jsonschema.Schema, error) {
	return s.compiler.Compile(resource + "#" + (&url.URL{Fragment: at}).EscapedFragment())
}

// follow returns the target of a reference, or at if ref is empty.
func follow(ref, at string) string {
	if ref == "" {
		return at
	}
	return strings.TrimPrefix(ref, "#")
}

func pointer(tokens ...string) string {
	var at string
	for _, token := range tokens {
		at = fault.Pointer(at, token)
	}
	return at
}
