package session_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/session"
	"telapi/internal/team"
	"telapi/internal/telemetry"
	"telapi/test/testkit"
)

func TestTokenIsValidUntilDeadline(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	unredeemed := e.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	e.advance(59 * time.Second)
	for range 2 { // Verify does not redeem
		_, ep, err := e.service.Verify(t.Context(), e.service.Parse(issued.Token))
		testkit.Must(t, err)
		testkit.Equal(t, "verified for origins", ep.Origins, []string{"https://a.example"})
		e.wantState(t, issued.SessionID, "verified", session.Issued)
	}
	testkit.Must(t, testkit.ErrorOf(e.redeem(t.Context(), issued.Token)))
	testkit.Must(t, testkit.ErrorOf(e.db.UpdateEndpoint(t.Context(), "ep", func(ep *team.Endpoint) ([]audit.Entry, error) { ep.Enabled = false; return nil, nil })))
	e.advance(time.Second)
	s, err := e.redeem(t.Context(), issued.Token)
	if err != nil {
		t.Fatalf("reconnect: %v", err)
	}
	if !s.LastSeenAt.Equal(e.now) || !s.RedeemedAt.Equal(e.now.Add(-time.Second)) {
		t.Errorf("reconnect: last seen at %v, redeemed at %v, want %v and a second before", s.LastSeenAt, s.RedeemedAt, e.now)
	}
	_, _, err = e.service.Verify(t.Context(), e.service.Parse(unredeemed.Token))
	testkit.WantFault(t, "first redemption after redeemBy", err, fault.SessionEnded)
	e.advance(9 * time.Minute)
	testkit.WantFault(t, "expired session", testkit.ErrorOf(e.redeem(t.Context(), issued.Token)), fault.SessionEnded)
	e.advance(1000 * time.Hour)
	_, _, err = e.service.Verify(t.Context(), e.service.Parse(issued.Token))
	testkit.WantFault(t, "long expired", err, fault.SessionEnded)
}

// The channel is opened between Verify and Redeem. A session that ends meanwhile
// has no channel to end yet.
func TestRedeemEndsChannelOfEndedSession(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep"}`)
	s, _, err := e.service.Verify(t.Context(), e.service.Parse(issued.Token))
	testkit.Must(t, err)
	testkit.Must(t, e.service.Delete(t.Context(), "t1", issued.SessionID))
	e.channels.ended = nil
	testkit.WantFault(t, "revoked meanwhile", e.service.Redeem(t.Context(), s.ID), fault.SessionEnded)
	e.wantEnded(t, issued.SessionID+" revoked")
	testkit.WantFault(t, "deleted meanwhile", e.service.Redeem(t.Context(), "none"), fault.SessionEnded)
	late := e.issue(t, `{"endpointId":"ep"}`)
	e.advance(time.Hour)
	testkit.WantFault(t, "expired", e.service.Redeem(t.Context(), late.SessionID), fault.SessionEnded)
	e.wantEnded(t, issued.SessionID+" revoked") // the sweeper ends the others
	e.channels.err = errUnavailable
	testkit.WantFault(t, "key-value store unavailable", e.service.Redeem(t.Context(), s.ID), fault.ServiceUnavailable)
	e.service.Store = failingStore{e.db, errUnavailable}
	testkit.WantFault(t, "database unavailable", e.service.Redeem(t.Context(), s.ID), fault.ServiceUnavailable)
}

func TestWebRTCTokenIsRejectedWhileDisabled(t *testing.T) {
	e := newEnv(t)
	call, chat := e.issue(t, `{"endpointId":"ep"}`), e.issue(t, `{"endpointId":"ep","mode":"chat"}`)
	e.service.WebRTC = false
	testkit.WantFault(t, "webrtc", testkit.ErrorOf(e.redeem(t.Context(), call.Token)), fault.WebRTCDisabled)
	testkit.NoError(t, "chat", testkit.ErrorOf(e.redeem(t.Context(), chat.Token)))
	e.wantState(t, call.SessionID, "rejected token", session.Issued)
}

func TestInvalidTokensAreRejected(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep"}`)
	s := e.session(t, issued.SessionID)
	sign := func(change func(*session.Session)) string {
		changed := s
		change(&changed)
		token, err := e.tokens.Sign(changed)
		testkit.Must(t, err)
		return token
	}
	signClaims := func(secret redact.Secret, method jwt.SigningMethod, claims jwt.MapClaims) string {
		var key any = []byte(secret.Reveal())
		if method == jwt.SigningMethodNone {
			key = jwt.UnsafeAllowNoneSignatureType
		}
		token, err := jwt.NewWithClaims(method, claims).SignedString(key)
		testkit.Must(t, err)
		return token
	}
	validClaims := jwt.MapClaims{
		"iss": "telapi", "aud": auth.SessionAudience, "sub": s.ID, "teamId": s.TeamID, "endpointId": s.EndpointID, "mode": s.Mode, "jti": s.TokenID,
		"iat": s.IssuedAt.Unix(), "exp": s.ExpiresAt.Unix(), "rdm": s.RedeemBy.Unix(),
	}
	callKey := auth.Secrets{Current: testSecret}.ForCallTokens().Current
	hs256 := func(claims jwt.MapClaims) string { return signClaims(callKey, jwt.SigningMethodHS256, claims) }
	if _, _, err := e.service.Verify(t.Context(), e.service.Parse(hs256(validClaims))); err != nil {
		t.Fatalf("valid token: %v", err)
	}
	tokens := map[string]string{
		"missing":                "",
		"garbage":                "a.b.c",
		"huge":                   strings.Repeat("a", 1<<20),
		"truncated":              issued.Token[:len(issued.Token)-1],
		"leading space":          " " + issued.Token,
		"another secret":         signClaims("another secret of more than 32 bytes", jwt.SigningMethodHS256, validClaims),
		"the console's secret":   signClaims(testSecret, jwt.SigningMethodHS256, validClaims),
		"no algorithm":           signClaims("", jwt.SigningMethodNone, validClaims),
		"another algorithm":      signClaims(callKey, jwt.SigningMethodHS512, validClaims),
		"a console JWT":          hs256(jwt.MapClaims{"sub": "u", "teamId": "t1", "scopes": auth.Scopes, "exp": s.ExpiresAt.Unix()}),
		"a console JWT with aud": hs256(jwt.MapClaims{"sub": s.ID, "teamId": "t1", "scopes": auth.Scopes, "exp": s.ExpiresAt.Unix(), "aud": "console"}),
		"unknown session":        sign(func(s *session.Session) { s.ID = "ses_gone" }),
		"older token ID":         sign(func(s *session.Session) { s.TokenID = "older" }),
		"another team":           sign(func(s *session.Session) { s.TeamID = "t2" }),
		"another endpoint":       sign(func(s *session.Session) { s.EndpointID = "chat" }),
		"another mode":           sign(func(s *session.Session) { s.Mode = team.Chat }),
	}
	type none struct{} // no claim
	for claim, values := range map[string][]any{
		"aud": {none{}, []string{auth.SessionAudience}, "TELAPI:SESSION"},
		"iss": {"console"},
		"sub": {none{}},
		"jti": {none{}},
		"exp": {none{}, "never", fmt.Sprint(s.ExpiresAt.Unix()), 1e18},
		"iat": {none{}, fmt.Sprint(s.IssuedAt.Unix()), -1},
		"nbf": {nil, "1"},
		"rdm": {none{}, nil, "later", fmt.Sprint(s.RedeemBy.Unix()), -1},
	} {
		for _, value := range values {
			changed := maps.Clone(validClaims)
			if changed[claim] = value; value == (none{}) {
				delete(changed, claim)
			}
			tokens[fmt.Sprintf("%s %#v", claim, value)] = hs256(changed)
		}
	}
	for name, token := range tokens {
		s, ep, err := e.service.Verify(t.Context(), e.service.Parse(token))
		testkit.WantFault(t, name, err, fault.Unauthorized)
		if s.ID != "" || ep.ID != "" {
			t.Errorf("%s: Verify returned session %q and endpoint %q with the error", name, s.ID, ep.ID)
		}
		const want = "The call token is missing or invalid. Request a new token."
		if f := fault.From(err); f.Message != want || f.Cause == nil {
			t.Errorf("%s: message %q with cause %v, want %q with a cause", name, f.Message, f.Cause, want)
		}
	}
	_, _, err := e.service.Verify(t.Context(), e.service.Parse(sign(func(s *session.Session) { s.ID, s.ExpiresAt = "ses_gone", e.now })))
	testkit.WantFault(t, "expired token of a deleted session", err, fault.SessionEnded)
	expired := sign(func(s *session.Session) { s.ExpiresAt = e.now })
	_, _, err = e.service.Verify(t.Context(), e.service.Parse(expired))
	testkit.WantFault(t, "expired before its session", err, fault.SessionEnded)
	if _, err := auth.NewConsoleTokens(auth.Secrets{Current: testSecret}, 24*time.Hour, e.clock).Verify(issued.Token); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		t.Errorf("a call token as a console JWT: error %v, want %v", err, jwt.ErrTokenSignatureInvalid)
	}
	e.service.Store = failingStore{e.db, errUnavailable}
	for _, token := range []string{issued.Token, expired} {
		_, _, err = e.service.Verify(t.Context(), e.service.Parse(token))
		testkit.WantFault(t, "database unavailable", err, fault.ServiceUnavailable)
	}
}

func TestTokenNamesSessionAndSpan(t *testing.T) {
	e := newEnv(t)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	issued, err := e.service.Issue(telemetry.WithTraceparent(t.Context(), parent), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"ep"}`)})
	testkit.Must(t, err)
	if token := e.service.Parse(issued.Token); token.SessionID() != issued.SessionID || token.Traceparent() != parent {
		t.Errorf("session %q and parent %q, want %q and %q", token.SessionID(), token.Traceparent(), issued.SessionID, parent)
	}
	// The signature is wrong, so the claims are not trusted.
	if token := e.service.Parse(issued.Token[:len(issued.Token)-2]); token.SessionID() != "" || token.Traceparent() != "" {
		t.Errorf("session %q and parent %q of a forged token", token.SessionID(), token.Traceparent())
	}
	if untraced := e.issue(t, `{"endpointId":"ep"}`); strings.Contains(e.session(t, untraced.SessionID).TokenID, ".") {
		t.Error("the ID of a token without a span has a part for it")
	}
}

func TestRejectedCallTokensAreCounted(t *testing.T) {
	e := newEnv(t)
	registry := prometheus.NewRegistry()
	e.service.Failures = auth.NewTokenFailures(registry)
	issued := e.issue(t, `{"endpointId":"ep"}`)
	for _, token := range []string{issued.Token, "rubbish", issued.Token[:len(issued.Token)-2] + "AA"} {
		_, _, _ = e.service.Verify(t.Context(), e.service.Parse(token))
	}
	for reason, want := range map[string]float64{"malformed call": 1, "signature call": 1, "claims call": 0, "expired call": 0} {
		testkit.Equal(t, reason, testkit.Metrics(t, registry)["telapi_jwt_failures_total "+reason], want)
	}
}
