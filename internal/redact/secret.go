// Package redact keeps secrets and personal data from leaving the process:
// values that never print themselves, a scrubber for free text, and masks for
// phone numbers.
package redact

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
)

// Placeholder stands wherever something was taken out.
const Placeholder = "[redacted]"

// Secret is a string that formats, logs and marshals as Placeholder. Reveal is the
// only way to the value, so every use of a secret can be found by that name.
type Secret string

// Reveal returns the value itself.
func (s Secret) Reveal() string { return string(s) }

// Fingerprint is a short, one-way mark of the value, by which two
// configurations can be compared without showing either.
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
