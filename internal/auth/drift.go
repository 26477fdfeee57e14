package auth

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/fault"
	"telapi/internal/sleep"
)

const (
	compareInterval = 10 * time.Second
	fingerprintTTL  = 3 * compareInterval // of an instance that has stopped
)

// Fingerprints shares the fingerprints of JWT secrets between instances.
type Fingerprints interface {
	// ShareFingerprint publishes the fingerprint of this instance until ttl has
	// passed, and returns those of all instances. An empty one is not published.
	ShareFingerprint(ctx context.Context, fingerprint string, ttl time.Duration) ([]string, error)
}

// OtherFingerprints returns the fingerprints that this instance does not know.
// Instances with such a secret reject the tokens that this one signs.
func (s Secrets) OtherFingerprints(all []string) []string {
	own := []string{s.Current.Fingerprint()}
	if s.Previous != "" {
		own = append(own, s.Previous.Fingerprint())
	}
	return slices.DeleteFunc(slices.Clone(all), func(f string) bool { return slices.Contains(own, f) })
}

// SecretMonitor compares the JWT secrets of all instances on one key-value store.
type SecretMonitor struct {
	store   Fingerprints
	secrets Secrets
	log     *slog.Logger
	others  prometheus.Gauge
	logged  string // the fingerprints that were logged last
}

// NewSecretMonitor returns a monitor. The caller must start Run.
func NewSecretMonitor(store Fingerprints, secrets Secrets, log *slog.Logger, registry prometheus.Registerer) *SecretMonitor {
	return &SecretMonitor{store: store, secrets: secrets, log: log,
		others: promauto.With(registry).NewGauge(prometheus.GaugeOpts{
			Name: "telapi_jwt_other_secrets",
			Help: "Number of JWT secrets, besides its own, that other instances on the same key-value store use.",
		})}
}

// Run compares the secrets until ctx ends. It does not log an unreachable store, which
// the store itself does.
func (m *SecretMonitor) Run(ctx context.Context) {
	for {
		if err := m.compare(ctx); err != nil && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) {
			m.log.WarnContext(ctx, "comparing the JWT secrets of all instances failed; retrying", "error", err)
		}
		if sleep.For(ctx, compareInterval) != nil {
			return
		}
	}
}

func (m *SecretMonitor) compare(ctx context.Context) error {
	own := m.secrets.Current.Fingerprint()
	all, err := m.store.ShareFingerprint(ctx, own, fingerprintTTL)
	if err != nil {
		return err
	}
	others := m.secrets.OtherFingerprints(all)
	m.others.Set(float64(len(others)))
	list := strings.Join(others, ", ")
	switch {
	case list == m.logged:
	case list == "":
		m.log.InfoContext(ctx, "all instances have the same JWT secret", "jwt_fingerprint", own)
	default:
		m.log.ErrorContext(ctx, "instances on this key-value store have different JWT secrets: tokens work on some of them only. Set the same JWT_SECRET everywhere",
			"jwt_fingerprint", own, "other_fingerprints", list)
	}
	m.logged = list
	return nil
}

// Kinds of tokens.
const (
	ConsoleToken = "console"
	CallToken    = "call"
)

// TokenFailures counts rejected JWTs by reason. A nil pointer counts nothing.
type TokenFailures struct{ counter *prometheus.CounterVec }

// tokenReasons are the reasons of rejected JWTs, most specific first.
var tokenReasons = []struct {
	err  error
	name string
}{
	{jwt.ErrTokenSignatureInvalid, "signature"},
	{jwt.ErrTokenExpired, "expired"},
	{jwt.ErrTokenMalformed, "malformed"},
	{nil, "claims"}, // all others
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
