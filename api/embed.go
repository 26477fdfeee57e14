// Package api carries the interface description, so that the server can serve
// it and the tests can hold every answer against it.
package api

import _ "embed"

// OpenAPI is the interface description, in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
