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

// claims is what a call token says. Audience hides the library's, which is a
// list: a console JWT can never have this one.
type claims struct {
	Audience   string        `json:"aud"`
	TeamID     string        `json:"teamId"`
	EndpointID string        `json:"endpointId"`
	Mode       endpoint.Mode `json:"mode"`
	RedeemBy   int64         `json:"rdm"`
	jwt.RegisteredClaims
}

// UnmarshalJSON reads claims by their exact names and refuses repeated ones, as
// the library's own decoder does not.
func (c *claims) UnmarshalJSON(b []byte) error {
	type plain claims
	return json.Unmarshal(b, (*plain)(c))
}

// Tokens signs and verifies call tokens. They are never kept: what a token says
// is in the session's record, and signing it again gives the same token.
type Tokens struct {
	signing  []byte
	verifier *auth.Verifier
}

// NewTokens returns tokens under the secrets.
func NewTokens(secrets auth.Secrets) *Tokens {
	// Whether a token's time is over is for the service to say: that is another
	// refusal than a bad one.
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

// verify returns what a well-signed call token says of its session, over its
// time or not.
func (t *Tokens) verify(token string) (Session, error) {
	var c claims
	err := t.verifier.Verify(token, &c)
	switch {
	case err != nil:
	case c.Audience != auth.SessionAudience || c.Issuer != tokenIssuer:
		err = errors.New("not a call token")
	case c.Subject == "" || c.ID == "" || c.ExpiresAt == nil || c.IssuedAt == nil:
		err = errors.New("a claim is missing")
	}
	if err != nil {
		return Session{}, badToken(err)
	}
	return Session{
		ID: c.Subject, TeamID: c.TeamID, EndpointID: c.EndpointID, Mode: c.Mode, TokenID: c.ID,
		IssuedAt: c.IssuedAt.Time, RedeemBy: time.Unix(c.RedeemBy, 0), ExpiresAt: c.ExpiresAt.Time,
	}, nil
}

// badToken is the one answer to every token that is none of ours; the log is
// told what was wrong.
func badToken(cause error) error {
	return fault.New(fault.Unauthorized, "The call token is missing or not valid. Ask for a new one.").
		WithCause(fmt.Errorf("verify call token: %w", cause))
}
