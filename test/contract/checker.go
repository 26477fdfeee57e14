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

// Checker knows what the file promises, with every schema compiled. It may be
// used from any goroutine.
type Checker struct {
	doc            *openapi3.T
	paths          *http.ServeMux // matches as the server does
	unlistedPath   *response
	unlistedMethod *response
}

// pathItem is one path of the file. It is a Handler for the mux to find, and
// never serves.
type pathItem struct {
	operations map[string]operation // by method
}

func (*pathItem) ServeHTTP(http.ResponseWriter, *http.Request) {}

// mayBeOff tells whether a deployment can do without the path: then it has no
// method at all, and none is wrong.
func (p *pathItem) mayBeOff() bool {
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
		known := &pathItem{map[string]operation{}}
		for method, op := range item.Operations() {
			at := pointer("paths", template, strings.ToLower(method), "responses")
			if known.operations[method], err = schemas.operation(op.Responses, at); err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, template, err)
			}
		}
		if strings.HasSuffix(template, "/") {
			template += "{$}" // that path, and nothing below it
		}
		c.paths.Handle(template, known)
	}
	for name, into := range map[string]**response{"NotFound": &c.unlistedPath, "MethodNotAllowed": &c.unlistedMethod} {
		ref := doc.Components.Responses[name]
		if ref == nil {
			return nil, fmt.Errorf("there is no response %s for what the file does not list", name)
		}
		if *into, err = schemas.response(ref, pointer("components", "responses", name)); err != nil {
			return nil, fmt.Errorf("response %s: %w", name, err)
		}
	}
	return c, nil
}

// expected finds what the file says about an answer, or why it says nothing.
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
	if !listed && status == http.StatusNotFound && item.mayBeOff() {
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

// item is nil for a path that the file does not list, spelt exactly.
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
		return nil, fmt.Errorf("the file does not list this %s, so the status has to be %d", what, want)
	}
	return r, nil
}

// schemas compiles the JSON Schemas of a file where they stand in it, so that
// their references need no rewriting.
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
			return nil, fmt.Errorf("%s is no status: list each one, or a new one goes unseen", code)
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

// follow is where a reference leads, or at if it is none.
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
