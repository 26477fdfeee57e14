package session_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/session"
)

func TestTokenIsValidUntilDeadline(t *testing.T) {
	e := newEnv(t)
	a := e.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	late := e.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	e.advance(59 * time.Second)
	for range 2 { // Verify does not redeem
		if _, ep, err := e.service.Verify(t.Context(), a.Token); err != nil || ep.Origins[0] != "https://a.example" || e.state(t, a.SessionID) != session.Issued {
			t.Fatal(err)
		}
	}
	if _, err := e.redeem(t.Context(), a.Token); err != nil {
		t.Fatal(err)
	}
	if _, err := e.db.UpdateEndpoint(t.Context(), "ep", func(ep *endpoint.Endpoint) error { ep.Enabled = false; return nil }); err != nil {
		t.Fatal(err)
	}
	e.advance(time.Second)
	if s, err := e.redeem(t.Context(), a.Token); err != nil || !s.LastSeenAt.Equal(e.now) || !s.RedeemedAt.Equal(e.now.Add(-time.Second)) {
		t.Errorf("reconnect: %+v, %v", s, err)
	}
	_, _, err := e.service.Verify(t.Context(), late.Token)
	wantFault(t, "first redemption after redeemBy", err, fault.SessionEnded)
	e.advance(9 * time.Minute)
	_, err = e.redeem(t.Context(), a.Token)
	wantFault(t, "expired session", err, fault.SessionEnded)
	e.advance(1000 * time.Hour)
	_, _, err = e.service.Verify(t.Context(), a.Token)
	wantFault(t, "long expired", err, fault.SessionEnded)
}

// The channel is opened between Verify and Redeem. A session that ends meanwhile
// has no channel to end yet.
func TestRedeemEndsChannelOfEndedSession(t *testing.T) {
	e := newEnv(t)
	a := e.issue(t, `{"endpointId":"ep"}`)
	s, _, err := e.service.Verify(t.Context(), a.Token)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.service.Delete(t.Context(), "t1", a.SessionID); err != nil {
		t.Fatal(err)
	}
	e.channels.ended = nil
	wantFault(t, "revoked meanwhile", e.service.Redeem(t.Context(), s.ID), fault.SessionEnded)
	if want := []string{a.SessionID + " revoked"}; !slices.Equal(e.channels.ended, want) {
		t.Errorf("ended %v, want %v", e.channels.ended, want)
	}
	wantFault(t, "deleted meanwhile", e.service.Redeem(t.Context(), "none"), fault.SessionEnded)
	late := e.issue(t, `{"endpointId":"ep"}`)
	e.advance(time.Hour)
	wantFault(t, "expired", e.service.Redeem(t.Context(), late.SessionID), fault.SessionEnded)
	e.channels.err = errUnavailable
	wantFault(t, "key-value store unavailable", e.service.Redeem(t.Context(), s.ID), fault.ServiceUnavailable)
	e.service.Store = unavailable{e.db}
	wantFault(t, "database unavailable", e.service.Redeem(t.Context(), s.ID), fault.ServiceUnavailable)
}

func TestWebRTCTokenIsRejectedWhileDisabled(t *testing.T) {
	e := newEnv(t)
	call, chat := e.issue(t, `{"endpointId":"ep"}`), e.issue(t, `{"endpointId":"ep","mode":"chat"}`)
	e.service.WebRTC = false
	_, err := e.redeem(t.Context(), call.Token)
	wantFault(t, "webrtc", err, fault.WebRTCDisabled)
	if _, err := e.redeem(t.Context(), chat.Token); err != nil {
		t.Errorf("chat: %v", err)
	}
	if e.state(t, call.SessionID) != session.Issued {
		t.Error("the rejected token was redeemed")
	}
}

func TestInvalidTokensAreRejected(t *testing.T) {
	e := newEnv(t)
	a := e.issue(t, `{"endpointId":"ep"}`)
	s := e.session(t, a.SessionID)
	sign := func(change func(*session.Session)) string {
		changed := s
		change(&changed)
		token, err := e.tokens.Sign(changed)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	with := func(secret redact.Secret, method jwt.SigningMethod, claims jwt.MapClaims) string {
		var key any = []byte(secret.Reveal())
		if method == jwt.SigningMethodNone {
			key = jwt.UnsafeAllowNoneSignatureType
		}
		token, err := jwt.NewWithClaims(method, claims).SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	good := jwt.MapClaims{
		"iss": "telapi", "aud": auth.SessionAudience, "sub": s.ID, "teamId": s.TeamID, "endpointId": s.EndpointID, "mode": s.Mode, "jti": s.TokenID,
		"iat": s.IssuedAt.Unix(), "exp": s.ExpiresAt.Unix(), "rdm": s.RedeemBy.Unix(),
	}
	but := func(claim string, value any) jwt.MapClaims {
		changed := jwt.MapClaims{}
		for name, v := range good {
			changed[name] = v
		}
		if changed[claim] = value; value == nil {
			delete(changed, claim)
		}
		return changed
	}
	if _, _, err := e.service.Verify(t.Context(), with(testSecret, jwt.SigningMethodHS256, good)); err != nil {
		t.Fatalf("valid token: %v", err)
	}
	hs := func(claims jwt.MapClaims) string { return with(testSecret, jwt.SigningMethodHS256, claims) }
	for name, token := range map[string]string{
		"missing":              "",
		"garbage":              "a.b.c",
		"huge":                 strings.Repeat("a", 1<<20),
		"cut short":            a.Token[:len(a.Token)-1],
		"another secret":       with("another secret of more than 32 bytes", jwt.SigningMethodHS256, good),
		"no algorithm":         with("", jwt.SigningMethodNone, good),
		"another algorithm":    with(testSecret, jwt.SigningMethodHS512, good),
		"a console JWT":        hs(jwt.MapClaims{"sub": "u", "teamId": "t1", "scopes": auth.Scopes, "exp": s.ExpiresAt.Unix()}),
		"a console JWT, aud":   hs(jwt.MapClaims{"sub": s.ID, "teamId": "t1", "scopes": auth.Scopes, "exp": s.ExpiresAt.Unix(), "aud": "console"}),
		"audience a list":      hs(but("aud", []string{auth.SessionAudience})),
		"audience missing":     hs(but("aud", nil)),
		"audience in capitals": hs(but("aud", "TELAPI:SESSION")),
		"another issuer":       hs(but("iss", "console")),
		"exp missing":          hs(but("exp", nil)),
		"exp a word":           hs(but("exp", "never")),
		"iat missing":          hs(but("iat", nil)),
		"sub missing":          hs(but("sub", nil)),
		"jti missing":          hs(but("jti", nil)),
		"rdm a word":           hs(but("rdm", "later")),
		"an older token's id":  sign(func(s *session.Session) { s.TokenID = "older" }),
		"another team":         sign(func(s *session.Session) { s.TeamID = "t2" }),
		"another endpoint":     sign(func(s *session.Session) { s.EndpointID = "chat" }),
		"another mode":         sign(func(s *session.Session) { s.Mode = endpoint.Chat }),
		"leading space":        " " + a.Token,
	} {
		s, ep, err := e.service.Verify(t.Context(), token)
		wantFault(t, name, err, fault.Unauthorized)
		if s.ID != "" || ep.ID != "" || err == nil || fault.From(err).Message != "The call token is missing or invalid. Request a new token." || fault.From(err).Cause == nil {
			t.Errorf("%s: rejected with %v %v %v", name, s, ep, err)
		}
	}
	_, _, err := e.service.Verify(t.Context(), sign(func(s *session.Session) { s.ID = "ses_gone" }))
	wantFault(t, "correctly signed token of an unknown session", err, fault.SessionEnded)
	if _, err := auth.NewConsoleTokens(auth.Secrets{Current: testSecret}, e.clock).Verify(a.Token); !fault.Is(err, fault.Unauthorized) {
		t.Errorf("a call token passes as a console JWT: %v", err)
	}
	e.service.Store = unavailable{e.db}
	_, _, err = e.service.Verify(t.Context(), a.Token)
	wantFault(t, "database unavailable", err, fault.ServiceUnavailable)
}

func TestSigningIsDeterministic(t *testing.T) {
	e := newEnv(t)
	a := e.issue(t, `{"endpointId":"ep"}`)
	for range 20 {
		if again, err := e.tokens.Sign(e.session(t, a.SessionID)); err != nil || again != a.Token {
			t.Fatalf("%v\n%s\n%s", err, again, a.Token)
		}
	}
}
