package httpserve

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"telapi/internal/fault"
	"telapi/internal/redact"
)

// MethodNotAllowed returns the error for a method that a path does not accept,
// and sets the Allow header.
func MethodNotAllowed(w http.ResponseWriter, allow string) error {
	w.Header().Set("Allow", allow)
	return fault.New(fault.MethodNotAllowed, "Method not allowed. Use %s.", allow)
}

// HasBearer reports whether the request carries one of the secrets as its bearer
// token. It takes the same time whichever secret matches.
func HasBearer(r *http.Request, secrets ...redact.Secret) bool {
	sent := r.Header["Authorization"]
	if len(sent) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(sent[0], " ")
	got, found := sha256.Sum256([]byte(strings.TrimSpace(token))), 0
	for _, secret := range secrets {
		want := sha256.Sum256([]byte(secret.Reveal()))
		found |= subtle.ConstantTimeCompare(got[:], want[:])
	}
	return found == 1 && strings.EqualFold(scheme, "Bearer")
}
