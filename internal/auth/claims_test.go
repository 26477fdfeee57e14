package auth_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
)

func TestLongestTokenIsAccepted(t *testing.T) {
	for length, accepted := range map[int]bool{auth.MaxTokenBytes: true, auth.MaxTokenBytes + 1: false} {
		// Leading spaces in the claims make the token as long as needed.
		padding, token := 0, ""
		for len(token) < length {
			padding++
			token = hs256(validHeader, strings.Repeat(" ", padding)+validClaims)
		}
		if len(token) != length {
			t.Fatalf("the token has %d bytes, want %d", len(token), length)
		}
		if _, err := newTestTokens().Verify(token); (err == nil) != accepted {
			t.Errorf("%d bytes: error %v, want accepted: %v", length, err, accepted)
		}
	}
}

func TestLastSecondOfYear9999IsATime(t *testing.T) {
	var claims jwt.RegisteredClaims
	if err := auth.UnmarshalClaims([]byte(`{"exp":253402300799}`), &claims); err != nil || claims.ExpiresAt.UTC().Year() != 9999 {
		t.Errorf("claims %+v, error %v", claims, err)
	}
	if err := auth.UnmarshalClaims([]byte(`{"exp":253402300800}`), &claims); err == nil {
		t.Error("no error one second later")
	}
}

func TestSecretOfCallTokensIsDerived(t *testing.T) {
	derived := auth.Secrets{Current: testSecret}.ForCallTokens()
	h := hmac.New(sha256.New, []byte(testSecret.Reveal()))
	h.Write([]byte("telapi-call-token"))
	if derived.Current.Reveal() != string(h.Sum(nil)) || derived.Previous != "" {
		t.Error("the current secret is not the HMAC of the label, or there is a previous one")
	}
}
