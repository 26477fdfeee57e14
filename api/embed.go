// Package api embeds the API descriptions. The server serves them, and tests check
// all responses and frames against them.
package api

import _ "embed"

// OpenAPI describes the HTTP API, AsyncAPI the frames of /ws/session and /ws/runtime. Both are
// YAML.
var (
	//go:embed openapi.yaml
	OpenAPI []byte
	//go:embed asyncapi.yaml
	AsyncAPI []byte
)
