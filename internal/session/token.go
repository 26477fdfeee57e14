package session

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
)

const tokenIssuer = "telapi"

// claims are the claims of a call token. Audience shadows the library's, which is
// a list, so that a console JWT cannot pass as a call token.
type claims struct {
	Audience   string        `json:"aud"`
	TeamID     string        `json:"teamId"`
	EndpointID string        `json:"endpointId"`
	Mode       endpoint.Mode `json:"mode"`
	RedeemBy   int64         `json:"rdm"`
	jwt.RegisteredClaims
}

// UnmarshalJSON matches names exactly and rejects duplicates. The library's
// decoder does neither.
func (c *claims) UnmarshalJSON(b []byte) error {
	type plain claims
	return json.Unmarshal(b, (*plain)(c))
}

// Tokens signs and verifies call tokens. Tokens are not stored: signing the same
// session again gives the same token.
type Tokens struct {
	signing  []byte
	verifier *auth.Verifier
}

// NewTokens returns tokens that are signed with the current secret.
func NewTokens(secrets auth.Secrets) *Tokens {
	// Service checks the expiry: an expired token gets another error than an
	// invalid one.
	return &Tokens{[]byte(secrets.Current.Reveal()), auth.NewVerifier(secrets, jwt.WithoutClaimsValidation())}
}

// Sign returns the call token of a session.
func (t *Tokens) Sign(s Session) (string, error) {
	token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims{
		Audience:   auth.SessionAudience,
		TeamID:     s.TeamID,
		EndpointID: s.EndpointID,
		Mode:       s.Mode,
		RedeemBy:   s.RedeemBy.Unix(),
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    tokenIssuer,
			Subject:   s.ID,
			ID:        s.TokenID,
			IssuedAt:  jwt.NewNumericDate(s.IssuedAt),
			ExpiresAt: jwt.NewNumericDate(s.ExpiresAt),
		},
	}).SignedString(t.signing)
	if err != nil {
		return "", fmt.Errorf("sign call token: %w", err)
	}
	return token, nil
}

// verify returns the session according to the claims of a correctly signed
// token, expired or not.
func (t *Tokens) verify(token string) (Session, error) {
	var c claims
	err := t.verifier.Verify(token, &c)
	switch {
	case err != nil:
	case c.Audience != auth.SessionAudience || c.Issuer != tokenIssuer:
		err = errors.New("not a call token")
	case c.Subject == "" || c.ID == "" || c.ExpiresAt == nil || c.IssuedAt == nil:
		err = errors.New("missing claim")
	}
	if err != nil {
		return Session{}, errToken(err)
	}
	return Session{
		ID: c.Subject, TeamID: c.TeamID, EndpointID: c.EndpointID, Mode: c.Mode, TokenID: c.ID,
		IssuedAt: c.IssuedAt.Time, RedeemBy: time.Unix(c.RedeemBy, 0), ExpiresAt: c.ExpiresAt.Time,
	}, nil
}

// errToken is the same error for every invalid token. Only the log shows the
// cause.
func errToken(cause error) error {
	return fault.New(fault.Unauthorized, "The call token is missing or invalid. Request a new token.").
		WithCause(fmt.Errorf("verify call token: %w", cause))
}
