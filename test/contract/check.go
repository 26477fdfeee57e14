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

// Check tells everything in which an answer differs from the file. A JSON body
// is read and put back; other bodies are left alone, for they may be endless.
func (c *Checker) Check(req *http.Request, res *http.Response) error {
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

func (r *response) checkHeaders(got http.Header) (problems []error) {
	for name, h := range r.headers {
		values := got.Values(name)
		if len(values) == 0 {
			if h.required {
				problems = append(problems, fmt.Errorf("header %s is missing", name))
			}
			continue
		}
		var value any = strings.Join(values, ", ")
		if h.integer {
			value = json.Number(value.(string))
			if !jsontext.Value(value.(json.Number)).IsValid() {
				problems = append(problems, fmt.Errorf("header %s: %q is no number", name, value))
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
		return nil // what follows is not a body
	}
	body, whole := peek(res)
	if whole && len(body) > 0 {
		return fmt.Errorf("the file documents no body, but there is one: %s", excerpt(body))
	}
	return nil
}

func checkJSON(res *http.Response, schema *jsonschema.Schema) error {
	body, whole := peek(res)
	if !whole {
		return nil // cut off on the way; whoever reads it will see that
	}
	// Stricter than the decoder below: no member twice, and UTF-8 throughout.
	if !jsontext.Value(body).IsValid() {
		return fmt.Errorf("the body is not one JSON value: %s", excerpt(body))
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

// requestID finds the id in an ErrorResponse.
func requestID(body any) (string, bool) {
	envelope, _ := body.(map[string]any)
	problem, _ := envelope["error"].(map[string]any)
	id, ok := problem["requestId"].(string)
	return id, ok
}

// peek reads the body and puts it back, an error on the way included. whole is
// false if there was one.
func peek(res *http.Response) (body []byte, whole bool) {
	body, err := io.ReadAll(res.Body)
	rest := io.Reader(bytes.NewReader(body))
	if err != nil {
		rest = io.MultiReader(rest, failing{err})
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{rest, res.Body}
	return body, err == nil
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func excerpt(body []byte) string {
	const enough = 500
	if len(body) > enough {
		return string(body[:enough]) + "…"
	}
	return string(body)
}
