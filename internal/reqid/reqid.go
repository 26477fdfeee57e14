// Package reqid owns the id by which one request is found again in logs,
// traces and error answers. It is a leaf, so that the HTTP server that sets the
// id and the log handler that prints it need not know each other.
package reqid

import (
	"context"
	"crypto/rand"
	"regexp"
)

// Header carries the id in both directions.
const Header = "X-Request-Id"

// sane is an id that can neither forge log lines nor grow without bounds.
var sane = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

type contextKey struct{}

// With returns a context that carries the id.
func With(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, contextKey{}, id)
}

// From returns the id a context carries, or "".
func From(ctx context.Context) string {
	id, _ := ctx.Value(contextKey{}).(string)
	return id
}

// New returns a random id.
func New() string { return rand.Text() }

// FromHeader takes over the id a client sent, or makes a new one where it sent
// none or none that is sane.
func FromHeader(value string) string {
	if !sane.MatchString(value) {
		return New()
	}
	return value
}
