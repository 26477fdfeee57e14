package session_test

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/session"
	"telapi/internal/tracing"
)

func TestTokenIsValidUntilDeadline(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	unredeemed := e.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	e.advance(59 * time.Second)
	for range 2 { // Verify does not redeem
		_, ep, err := e.service.Verify(t.Context(), e.service.Parse(issued.Token))
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"https://a.example"}; !slices.Equal(ep.Origins, want) {
			t.Errorf("verified for origins %q, want %q", ep.Origins, want)
		}
		e.wantState(t, issued.SessionID, "verified", session.Issued)
	}
	if _, err := e.redeem(t.Context(), issued.Token); err != nil {
		t.Fatal(err)
	}
	if _, err := e.db.UpdateEndpoint(t.Context(), "ep", func(ep *endpoint.Endpoint) ([]audit.Entry, error) { ep.Enabled = false; return nil, nil }); err != nil {
		t.Fatal(err)
	}
	e.advance(time.Second)
	s, err := e.redeem(t.Context(), issued.Token)
	if err != nil {
		t.Fatalf("reconnect: %v", err)
	}
	if !s.LastSeenAt.Equal(e.now) || !s.RedeemedAt.Equal(e.now.Add(-time.Second)) {
		t.Errorf("reconnect: last seen at %v, redeemed at %v, want %v and a second before", s.LastSeenAt, s.RedeemedAt, e.now)
	}
	_, _, err = e.service.Verify(t.Context(), e.service.Parse(unredeemed.Token))
	wantFault(t, "first redemption after redeemBy", err, fault.SessionEnded)
	e.advance(9 * time.Minute)
	_, err = e.redeem(t.Context(), issued.Token)
	wantFault(t, "expired session", err, fault.SessionEnded)
	e.advance(1000 * time.Hour)
	_, _, err = e.service.Verify(t.Context(), e.service.Parse(issued.Token))
	wantFault(t, "long expired", err, fault.SessionEnded)
}

// The channel is opened between Verify and Redeem. A session that ends meanwhile
// has no channel to end yet.
func TestRedeemEndsChannelOfEndedSession(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep"}`)
	s, _, err := e.service.Verify(t.Context(), e.service.Parse(issued.Token))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.service.Delete(t.Context(), "t1", issued.SessionID); err != nil {
		t.Fatal(err)
	}
	e.channels.ended = nil
	wantFault(t, "revoked meanwhile", e.service.Redeem(t.Context(), s.ID), fault.SessionEnded)
	e.wantEnded(t, issued.SessionID+" revoked")
	wantFault(t, "deleted meanwhile", e.service.Redeem(t.Context(), "none"), fault.SessionEnded)
	late := e.issue(t, `{"endpointId":"ep"}`)
	e.advance(time.Hour)
	wantFault(t, "expired", e.service.Redeem(t.Context(), late.SessionID), fault.SessionEnded)
	e.wantEnded(t, issued.SessionID+" revoked") // the sweeper ends the others
	e.channels.err = errUnavailable
	wantFault(t, "key-value store unavailable", e.service.Redeem(t.Context(), s.ID), fault.ServiceUnavailable)
	e.service.Store = unavailableStore{e.db}
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
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	signClaims := func(secret redact.Secret, method jwt.SigningMethod, claims jwt.MapClaims) string {
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
	validClaims := jwt.MapClaims{
		"iss": "telapi", "aud": auth.SessionAudience, "sub": s.ID, "teamId": s.TeamID, "endpointId": s.EndpointID, "mode": s.Mode, "jti": s.TokenID,
		"iat": s.IssuedAt.Unix(), "exp": s.ExpiresAt.Unix(), "rdm": s.RedeemBy.Unix(),
	}
	replace := func(claim string, value any) jwt.MapClaims {
		changed := maps.Clone(validClaims)
		changed[claim] = value
		return changed
	}
	without := func(claim string) jwt.MapClaims {
		changed := maps.Clone(validClaims)
		delete(changed, claim)
		return changed
	}
	callKey := auth.Secrets{Current: testSecret}.ForCallTokens().Current
	if _, _, err := e.service.Verify(t.Context(), e.service.Parse(signClaims(callKey, jwt.SigningMethodHS256, validClaims))); err != nil {
		t.Fatalf("valid token: %v", err)
	}
	hs256 := func(claims jwt.MapClaims) string { return signClaims(callKey, jwt.SigningMethodHS256, claims) }
	for name, token := range map[string]string{
		"missing":                "",
		"garbage":                "a.b.c",
		"huge":                   strings.Repeat("a", 1<<20),
		"truncated":              issued.Token[:len(issued.Token)-1],
		"another secret":         signClaims("another secret of more than 32 bytes", jwt.SigningMethodHS256, validClaims),
		"the console's secret":   signClaims(testSecret, jwt.SigningMethodHS256, validClaims),
		"no algorithm":           signClaims("", jwt.SigningMethodNone, validClaims),
		"another algorithm":      signClaims(callKey, jwt.SigningMethodHS512, validClaims),
		"a console JWT":          hs256(jwt.MapClaims{"sub": "u", "teamId": "t1", "scopes": auth.Scopes, "exp": s.ExpiresAt.Unix()}),
		"a console JWT with aud": hs256(jwt.MapClaims{"sub": s.ID, "teamId": "t1", "scopes": auth.Scopes, "exp": s.ExpiresAt.Unix(), "aud": "console"}),
		"audience is a list":     hs256(replace("aud", []string{auth.SessionAudience})),
		"audience missing":       hs256(without("aud")),
		"audience in capitals":   hs256(replace("aud", "TELAPI:SESSION")),
		"another issuer":         hs256(replace("iss", "console")),
		"exp missing":            hs256(without("exp")),
		"exp is a word":          hs256(replace("exp", "never")),
		"iat missing":            hs256(without("iat")),
		"sub missing":            hs256(without("sub")),
		"jti missing":            hs256(without("jti")),
		"exp is a quoted number": hs256(replace("exp", strconv.FormatInt(s.ExpiresAt.Unix(), 10))),
		"exp is out of range":    hs256(replace("exp", 1e18)),
		"iat is a quoted number": hs256(replace("iat", strconv.FormatInt(s.IssuedAt.Unix(), 10))),
		"iat is negative":        hs256(replace("iat", -1)),
		"nbf is null":            hs256(replace("nbf", nil)),
		"nbf is a quoted number": hs256(replace("nbf", "1")),
		"rdm missing":            hs256(without("rdm")),
		"rdm is null":            hs256(replace("rdm", nil)),
		"rdm is a word":          hs256(replace("rdm", "later")),
		"rdm is a quoted number": hs256(replace("rdm", strconv.FormatInt(s.RedeemBy.Unix(), 10))),
		"rdm is negative":        hs256(replace("rdm", -1)),
		"unknown session":        sign(func(s *session.Session) { s.ID = "ses_gone" }),
		"older token ID":         sign(func(s *session.Session) { s.TokenID = "older" }),
		"another team":           sign(func(s *session.Session) { s.TeamID = "t2" }),
		"another endpoint":       sign(func(s *session.Session) { s.EndpointID = "chat" }),
		"another mode":           sign(func(s *session.Session) { s.Mode = endpoint.Chat }),
		"leading space":          " " + issued.Token,
	} {
		s, ep, err := e.service.Verify(t.Context(), e.service.Parse(token))
		wantFault(t, name, err, fault.Unauthorized)
		if s.ID != "" || ep.ID != "" {
			t.Errorf("%s: Verify returned session %q and endpoint %q with the error", name, s.ID, ep.ID)
		}
		const want = "The call token is missing or invalid. Request a new token."
		if f := fault.From(err); f.Message != want || f.Cause == nil {
			t.Errorf("%s: message %q with cause %v, want %q with a cause", name, f.Message, f.Cause, want)
		}
	}
	_, _, err := e.service.Verify(t.Context(), e.service.Parse(sign(func(s *session.Session) { s.ID, s.ExpiresAt = "ses_gone", e.now })))
	wantFault(t, "expired token of a deleted session", err, fault.SessionEnded)
	expired := sign(func(s *session.Session) { s.ExpiresAt = e.now })
	_, _, err = e.service.Verify(t.Context(), e.service.Parse(expired))
	wantFault(t, "expired before its session", err, fault.SessionEnded)
	if _, err := auth.NewConsoleTokens(auth.Secrets{Current: testSecret}, 24*time.Hour, e.clock).Verify(issued.Token); !errors.Is(err, jwt.ErrTokenSignatureInvalid) {
		t.Errorf("a call token as a console JWT: error %v, want %v", err, jwt.ErrTokenSignatureInvalid)
	}
	e.service.Store = unavailableStore{e.db}
	for _, token := range []string{issued.Token, expired} {
		_, _, err = e.service.Verify(t.Context(), e.service.Parse(token))
		wantFault(t, "database unavailable", err, fault.ServiceUnavailable)
	}
}

func TestTokenNamesSessionAndSpan(t *testing.T) {
	e := newEnv(t)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	issued, err := e.service.Issue(tracing.WithParent(t.Context(), parent), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"ep"}`)})
	if err != nil {
		t.Fatal(err)
	}
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
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
	}
	for reason, want := range map[string]float64{"malformed call": 1, "signature call": 1, "claims call": 0, "expired call": 0} {
		if got[reason] != want {
			t.Errorf("%s: %v, want %v", reason, got[reason], want)
		}
	}
}

func TestSigningIsDeterministic(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep"}`)
	for range 20 {
		token, err := e.tokens.Sign(e.session(t, issued.SessionID))
		if err != nil {
			t.Fatal(err)
		}
		if token != issued.Token {
			t.Fatalf("signed\n%s, want the issued token\n%s", token, issued.Token)
		}
	}
}
