package contract

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Check returns all differences between a response and the description. It reads
// a JSON body and restores it. It does not read other bodies, which may be
// endless.
func (c *Checker) Check(req *http.Request, res *http.Response) error {
	if internal(req.URL.Path) {
		return nil
	}
	want, err := c.expected(req, res.StatusCode)
	if err != nil {
		return err
	}
	problems := want.checkHeaders(res.Header)
	if len(want.content) == 0 {
		return errors.Join(append(problems, checkNoBody(res))...)
	}
	mediaType, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	schema, listed := want.content[mediaType]
	if err != nil || !listed {
		problems = append(problems, fmt.Errorf("Content-Type %q is not documented for this status", res.Header.Get("Content-Type")))
	}
	if schema != nil && mediaType == "application/json" && req.Method != http.MethodHead {
		problems = append(problems, checkJSON(res, schema))
	}
	return errors.Join(problems...)
}

// internal reports whether a path belongs to the pages of the playground and the API
// reference. They are not part of the API.
func internal(path string) bool {
	return path == "/" || strings.HasPrefix(path+"/", "/playground/") || strings.HasPrefix(path+"/", "/docs/")
}

func (r *response) checkHeaders(got http.Header) (problems []error) {
	for name, h := range r.headers {
		values := got.Values(name)
		if len(values) == 0 {
			if h.required {
				problems = append(problems, fmt.Errorf("header %s is missing", name))
			}
			continue
		}
		if len(values) > 1 {
			problems = append(problems, fmt.Errorf("header %s has %d lines, but one is documented", name, len(values)))
		}
		var value any = values[0]
		if h.integer {
			value = json.Number(value.(string))
			if !jsontext.Value(value.(json.Number)).IsValid() {
				problems = append(problems, fmt.Errorf("header %s: %q is not a number", name, value))
				continue
			}
		}
		if err := h.schema.Validate(value); err != nil {
			problems = append(problems, fmt.Errorf("header %s: %w", name, err))
		}
	}
	return problems
}

func checkNoBody(res *http.Response) error {
	if res.StatusCode == http.StatusSwitchingProtocols {
		return nil // WebSocket frames follow, not a body
	}
	if body, complete := peek(res); complete && len(body) > 0 {
		return fmt.Errorf("no body is documented, but the response has one: %s", excerpt(body))
	}
	return nil
}

func checkJSON(res *http.Response, schema *jsonschema.Schema) error {
	body, complete := peek(res)
	if !complete {
		return nil // the connection broke; the reader of the body gets an error
	}
	// Unlike the decoder below, IsValid rejects duplicate members and invalid UTF-8.
	if !jsontext.Value(body).IsValid() {
		return fmt.Errorf("the body is not a single JSON value: %s", excerpt(body))
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("body %s\n%w", excerpt(body), err)
	}
	if id, ok := requestID(value); ok && id != res.Header.Get("X-Request-Id") {
		return fmt.Errorf("requestId is %q in the body and %q in the header", id, res.Header.Get("X-Request-Id"))
	}
	return nil
}

// requestID returns the request ID of an ErrorResponse.
func requestID(body any) (string, bool) {
	envelope, _ := body.(map[string]any)
	problem, _ := envelope["error"].(map[string]any)
	id, ok := problem["requestId"].(string)
	return id, ok
}

// peek reads the body and restores what was read. complete is false after an error.
func peek(res *http.Response) (body []byte, complete bool) {
	body, err := io.ReadAll(res.Body)
	res.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), res.Body), res.Body}
	return body, err == nil
}

func excerpt(body []byte) string {
	const limit = 500
	if len(body) > limit {
		return string(body[:limit]) + "…"
	}
	return string(body)
}
