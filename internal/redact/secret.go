// Package redact removes secrets and phone numbers from logs, traces and metrics.
package redact

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
)

// Placeholder replaces a secret.
const Placeholder = "[redacted]"

// Secret is a string that formats, logs and marshals as Placeholder. Only Reveal
// returns the value.
type Secret string

// Reveal returns the value.
func (s Secret) Reveal() string { return string(s) }

// Fingerprint returns a short hash of the value, for comparing configurations
// without showing them.
func (s Secret) Fingerprint() string {
	if s == "" {
		return "none"
	}
	sum := sha256.Sum256([]byte("telapi:fingerprint:" + string(s)))
	return hex.EncodeToString(sum[:4])
}

func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return Placeholder
}

// GoString keeps %#v from printing the value.
func (s Secret) GoString() string { return s.String() }

// LogValue keeps slog from printing the value.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText keeps encoders from writing the value.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
