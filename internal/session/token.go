package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/team"
)

const tokenIssuer = "telapi"

// claims are the claims of a call token. Audience replaces the library's field,
// which also accepts a list, so that a console JWT cannot pass as a call token.
type claims struct {
	Audience   string           `json:"aud"`
	TeamID     string           `json:"teamId"`
	EndpointID string           `json:"endpointId"`
	Mode       team.Mode        `json:"mode"`
	RedeemBy   *jwt.NumericDate `json:"rdm"`
	jwt.RegisteredClaims
}

// UnmarshalJSON decodes with auth.UnmarshalClaims.
func (c *claims) UnmarshalJSON(b []byte) error {
	type plain claims
	return auth.UnmarshalClaims(b, (*plain)(c))
}

// Tokens signs and verifies call tokens. Tokens are not stored: signing the same
// session again gives the same token.
type Tokens struct {
	signingKey []byte
	verifier   *auth.Verifier
}

// NewTokens returns Tokens that sign with a key derived from the current secret, and verify
// with those of the current and the previous one.
func NewTokens(secrets auth.Secrets) *Tokens {
	secrets = secrets.ForCallTokens()
	// Service checks the expiry, because expired tokens get a different error
	// from invalid ones.
	return &Tokens{[]byte(secrets.Current.Reveal()), auth.NewVerifier(secrets, jwt.WithoutClaimsValidation())}
}

// Sign returns the call token of a session.
func (t *Tokens) Sign(s Session) (string, error) {
	return jwt.NewWithClaims(jwt.SigningMethodHS256, claims{
		Audience:   auth.SessionAudience,
		TeamID:     s.TeamID,
		EndpointID: s.EndpointID,
		Mode:       s.Mode,
		RedeemBy:   jwt.NewNumericDate(s.RedeemBy),
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer:    tokenIssuer,
			Subject:   s.ID,
			ID:        s.TokenID,
			IssuedAt:  jwt.NewNumericDate(s.IssuedAt),
			ExpiresAt: jwt.NewNumericDate(s.ExpiresAt),
		},
	}).SignedString(t.signingKey)
}

// errInvalidToken returns the same public error for every invalid token. The cause is only
// logged.
func errInvalidToken(cause error) error {
	return fault.New(fault.Unauthorized, "The call token is missing or invalid. Request a new token.").
		WithCause(fmt.Errorf("verify call token: %w", cause))
}

// CallToken is a parsed call token. An invalid one has an error and no claims.
type CallToken struct {
	claims claims
	err    error
}

// Parse checks the signature and the claims of a call token, expired or not, without a
// look into the database.
func (s *Service) Parse(token string) CallToken {
	var c claims
	err := s.Tokens.verifier.Verify(token, &c)
	switch {
	case err != nil: // of the signature or the encoding
	case c.Audience != auth.SessionAudience || c.Issuer != tokenIssuer:
		err = errors.New("not a call token")
	case c.Subject == "" || c.ID == "" || c.ExpiresAt == nil || c.IssuedAt == nil || c.RedeemBy == nil:
		err = errors.New("missing claim")
	}
	if err != nil {
		return CallToken{err: errInvalidToken(err)}
	}
	return CallToken{claims: c}
}

// SessionID returns the session of a well-signed token, or an empty string.
func (t CallToken) SessionID() string { return t.claims.Subject }

// Traceparent returns the span of the request that created the session of a
// well-signed token, or an empty string.
func (t CallToken) Traceparent() string {
	_, traceparent, _ := strings.Cut(t.claims.ID, ".")
	return traceparent
}

// Verify returns the session and endpoint of a call token without changing
// anything. It fails with fault.Unauthorized if the token is invalid or its session
// is unknown, with fault.SessionEnded if its session has ended or expired, and with
// fault.WebRTCDisabled if its mode is disabled. Sessions of an endpoint that was
// disabled later stay valid.
func (s *Service) Verify(ctx context.Context, token CallToken) (Session, team.Endpoint, error) {
	session, err := s.verify(ctx, token)
	if err != nil {
		return Session{}, team.Endpoint{}, err
	}
	e, err := s.Endpoints.Endpoint(ctx, session.TeamID, session.EndpointID)
	if fault.Is(err, fault.NotFound) {
		return Session{}, team.Endpoint{}, errSessionEnded(errors.New("endpoint was deleted"))
	}
	if err != nil {
		return Session{}, team.Endpoint{}, fmt.Errorf("get endpoint of session: %w", err)
	}
	return session, e, nil
}

func (s *Service) verify(ctx context.Context, token CallToken) (Session, error) {
	if token.err != nil {
		s.Failures.Count(auth.CallToken, token.err)
		return Session{}, token.err
	}
	c := token.claims
	session, err := s.Store.Session(ctx, c.Subject)
	expired := !s.Now().Before(c.ExpiresAt.Time)
	switch state := session.State(s.Now(), false); {
	case fault.Is(err, fault.NotFound) && expired: // deleted SESSION_RETENTION after its end
		return Session{}, errSessionEnded(err)
	case fault.Is(err, fault.NotFound):
		return Session{}, errInvalidToken(err)
	case err != nil:
		return Session{}, fmt.Errorf("get session: %w", err)
	case session.TokenID != c.ID || session.TeamID != c.TeamID || session.EndpointID != c.EndpointID || session.Mode != c.Mode:
		return Session{}, errInvalidToken(errors.New("claims differ from the session"))
	case expired:
		return Session{}, errSessionEnded(errors.New("token expired"))
	case state != Issued && state != Disconnected:
		return Session{}, errSessionEnded(errors.New("session is " + string(state)))
	}
	return session, s.checkMode(session.Mode)
}

// Redeem records a connection of the browser after Verify: the first one before
// RedeemBy, later ones before ExpiresAt. The session's channel must already be
// open. If the session has ended since Verify, Redeem ends the channel and fails
// with fault.SessionEnded.
func (s *Service) Redeem(ctx context.Context, id string) error {
	err := s.Store.RedeemSession(ctx, id, s.Now())
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	session, err := s.Store.Session(ctx, id)
	if err == nil && !session.EndedAt.IsZero() {
		err = s.endChannels(ctx, session.EndedAs, id)
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("redeem session: %w", err)
	}
	return errSessionEnded(errors.New("ended or expired since the token was verified"))
}

// End records that the call runtime has ended the channel of a session. It may be
// called for any channel that has ended. It does not change the final state of a
// session that has already ended.
func (s *Service) End(ctx context.Context, id string) error {
	if _, err := s.Store.EndSession(ctx, id, Ended, s.Now()); err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return nil
}

func errSessionEnded(cause error) error {
	return fault.New(fault.SessionEnded, "The session has ended or expired. Request a new token.").WithCause(cause)
}
