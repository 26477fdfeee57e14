package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"regexp"

	"telapi/internal/redact"
)

// keyPattern matches tk_<id>_<secret>. The secret is 256 random bits in base64url.
var keyPattern = regexp.MustCompile(`^tk_([A-Za-z0-9]{1,64})_([A-Za-z0-9_-]{43})$`)

// newSecret returns a new ID, the full key for its owner, and the digest to store.
func newSecret() (id string, full redact.Secret, digest [32]byte) {
	id = rand.Text()[:20]
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	secret := base64.RawURLEncoding.EncodeToString(raw[:])
	return id, redact.Secret("tk_" + id + "_" + secret), sha256.Sum256([]byte(secret))
}

// splitSecret parses a presented key. ok is false if it is malformed.
func splitSecret(presented string) (id string, digest [32]byte, ok bool) {
	m := keyPattern.FindStringSubmatch(presented)
	if m == nil {
		return "", digest, false
	}
	return m[1], sha256.Sum256([]byte(m[2])), true
}

func sameDigest(a, b [32]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }
