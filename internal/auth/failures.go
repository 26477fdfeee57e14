package auth

import (
	"errors"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Kinds of tokens.
const (
	ConsoleToken = "console"
	CallToken    = "call"
)

// TokenFailures counts rejected JWTs by reason. A nil pointer counts nothing.
type TokenFailures struct{ counter *prometheus.CounterVec }

// tokenReasons are the reasons of rejected JWTs. The first that matches counts.
var tokenReasons = []struct {
	err  error // nil: any error
	name string
}{
	{jwt.ErrTokenSignatureInvalid, "signature"},
	{jwt.ErrTokenExpired, "expired"},
	{jwt.ErrTokenMalformed, "malformed"},
	{nil, "claims"},
}

// NewTokenFailures returns counters that start at 0.
func NewTokenFailures(registry prometheus.Registerer) *TokenFailures {
	f := &TokenFailures{promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "telapi_jwt_failures_total",
		Help: "Rejected JWTs by token (console or call) and reason (signature, expired, malformed or claims).",
	}, []string{"token", "reason"})}
	for _, token := range []string{ConsoleToken, CallToken} {
		for _, reason := range tokenReasons {
			f.counter.WithLabelValues(token, reason.name)
		}
	}
	return f
}

// Count counts a token that was rejected with err. It ignores nil.
func (f *TokenFailures) Count(token string, err error) {
	if f == nil || err == nil {
		return
	}
	for _, reason := range tokenReasons {
		if reason.err == nil || errors.Is(err, reason.err) {
			f.counter.WithLabelValues(token, reason.name).Inc()
			return
		}
	}
}
