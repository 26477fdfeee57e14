package auth

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/internal/background"
	"telapi/internal/fault"
)

const (
	compareInterval = 10 * time.Second
	compareRetry    = time.Second         // while the store is unavailable, as it is before the first connection
	fingerprintTTL  = 3 * compareInterval // after which the fingerprint of a stopped instance expires
)

// Fingerprints shares the fingerprints of JWT secrets between instances.
type Fingerprints interface {
	// ShareFingerprint publishes the fingerprint of this instance for ttl, and
	// returns those of all instances. It does not publish an empty fingerprint.
	ShareFingerprint(ctx context.Context, fingerprint string, ttl time.Duration) ([]string, error)
}

// OtherFingerprints returns the fingerprints of secrets that this instance does not have.
// Instances that have another secret reject the tokens that this one signs.
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
			Help: "Other JWT secrets that instances on the same key-value store use.",
		})}
}

// Run compares the secrets until ctx ends. It does not log that the store is unavailable:
// the store itself does.
func (m *SecretMonitor) Run(ctx context.Context) {
	for {
		wait, err := compareInterval, m.compare(ctx)
		switch {
		case fault.Is(err, fault.ServiceUnavailable):
			wait = compareRetry
		case err != nil && ctx.Err() == nil:
			m.log.WarnContext(ctx, "comparing the JWT secrets of all instances failed; retrying", "error", err)
		}
		if background.Sleep(ctx, wait) != nil {
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
	case list == m.logged: // nothing new
	case list == "":
		m.log.InfoContext(ctx, "all instances have the same JWT secret", "jwt_fingerprint", own)
	default:
		m.log.ErrorContext(ctx, "instances on this key-value store have different JWT secrets: tokens work on some of them only. Set the same JWT_SECRET everywhere",
			"jwt_fingerprint", own, "other_fingerprints", list)
	}
	m.logged = list
	return nil
}
