package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"regexp"

	"telapi/internal/redact"
)

// keyForm is tk_<id>_<secret>: the id finds the record, the secret is 256
// random bits in base64url.
var keyForm = regexp.MustCompile(`^tk_([A-Za-z0-9]{1,64})_([A-Za-z0-9_-]{43})$`)

// newSecret makes an id, the full key to hand out once, and the digest to keep.
func newSecret() (id string, full redact.Secret, digest [32]byte) {
	id = rand.Text()[:20]
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // crypto/rand never fails: it ends the process instead
	secret := base64.RawURLEncoding.EncodeToString(raw[:])
	return id, redact.Secret("tk_" + id + "_" + secret), sha256.Sum256([]byte(secret))
}

// splitSecret takes a presented key apart. ok is false when it has not the form of one.
func splitSecret(presented string) (id string, digest [32]byte, ok bool) {
	m := keyForm.FindStringSubmatch(presented)
	if m == nil {
		return "", digest, false
	}
	return m[1], sha256.Sum256([]byte(m[2])), true
}

func sameDigest(a, b [32]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }
