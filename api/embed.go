// Package api carries the interface descriptions, so that the server can serve
// them and the tests can hold every answer and every frame against them.
package api

import _ "embed"

// OpenAPI describes the HTTP surface, AsyncAPI the frames of /ws/session. Both
// are YAML.
var (
	//go:embed openapi.yaml
	OpenAPI []byte
	//go:embed asyncapi.yaml
	AsyncAPI []byte
)
