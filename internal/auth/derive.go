package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"

	"telapi/callruntime/wire"
	"telapi/internal/redact"
)

// Derive returns a secret that follows from a signing secret and texts, in base64url.
func Derive(key redact.Secret, texts ...string) string {
	h := hmac.New(sha256.New, []byte(key.Reveal()))
	_, _ = h.Write([]byte("telapi runtime\x00" + strings.Join(texts, "\x00"))) // never fails, and no JWT contains a zero
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// Try runs f with the current secret. If f fails with conflict, an instance that did not have the
// new secrets yet may have run it: Try runs f with that one's secret.
func (s Secrets) Try(conflict error, f func(key redact.Secret) error) error {
	err := f(s.Current)
	if s.Previous != "" && errors.Is(err, conflict) {
		err = f(s.Previous)
	}
	return err
}

// CallbackToken returns the credential of a work item, or of a channel, and the digest by which
// the store knows it. Every instance derives the same.
func CallbackToken(key redact.Secret, teamID, channelID, workItemID string, scope wire.Scope) (token, digest string) {
	token = wire.TokenPrefix + Derive(key, "await", teamID, channelID, workItemID, string(scope)) + "." + workItemID
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}
