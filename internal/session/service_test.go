package session_test

import (
	"context"
	"testing"
	"time"

	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/session"
)

func TestSessionStates(t *testing.T) {
	e := newEnv(t)
	a := e.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	if got := e.state(t, a.SessionID); got != session.Issued || e.channels.queries > 0 {
		t.Errorf("new session is %s", got)
	}
	if _, err := e.redeem(t.Context(), a.Token); err != nil {
		t.Fatal(err)
	}
	if got := e.state(t, a.SessionID); got != session.Disconnected {
		t.Errorf("without a browser it is %s", got)
	}
	e.channels.connect(t, a.SessionID)
	if got := e.state(t, a.SessionID); got != session.Connected {
		t.Errorf("with a browser it is %s", got)
	}
	e.advance(10 * time.Minute)
	if got := e.state(t, a.SessionID); got != session.Expired {
		t.Errorf("after its deadline it is %s", got)
	}
	other := e.issue(t, `{"endpointId":"ep"}`)
	if err := e.service.End(t.Context(), other.SessionID); err != nil || e.state(t, other.SessionID) != session.Ended || len(e.channels.ended) > 0 || !e.settled(t, other.SessionID) {
		t.Errorf("ended by the runtime: %s, %v, %v", e.state(t, other.SessionID), e.channels.ended, err)
	}
	e.channels.err = errUnavailable
	third := e.issue(t, `{"endpointId":"ep"}`)
	if _, err := e.redeem(t.Context(), third.Token); err != nil {
		t.Fatal(err)
	}
	_, err := e.service.Get(t.Context(), "t1", third.SessionID)
	wantFault(t, "presence unavailable", err, fault.ServiceUnavailable)
}

func TestDeleteRevokesBeforeEndingChannel(t *testing.T) {
	e := newEnv(t)
	a := e.issue(t, `{"endpointId":"ep"}`)
	e.channels.err = errUnavailable
	wantFault(t, "key-value store unavailable", e.service.Delete(t.Context(), "t1", a.SessionID), fault.ServiceUnavailable)
	if e.state(t, a.SessionID) != session.Revoked || e.settled(t, a.SessionID) {
		t.Error("not revoked, or settled")
	}
	_, err := e.redeem(t.Context(), a.Token)
	wantFault(t, "revoked token", err, fault.SessionEnded)

	e.channels.err = nil
	for range 2 {
		if err := e.service.Delete(t.Context(), "t1", a.SessionID); err != nil || !e.settled(t, a.SessionID) {
			t.Fatal(err)
		}
	}
	if want := a.SessionID + " revoked"; e.channels.ended[0] != want {
		t.Errorf("ended %v, want %s", e.channels.ended, want)
	}
	for _, team := range []string{"t2", ""} {
		_, err := e.service.Get(t.Context(), team, a.SessionID)
		wantFault(t, "foreign session", err, fault.NotFound)
		wantFault(t, "foreign session", e.service.Delete(t.Context(), team, a.SessionID), fault.NotFound)
	}
	e.service.Store = unavailable{e.db}
	wantFault(t, "database unavailable", e.service.Delete(t.Context(), "t1", a.SessionID), fault.ServiceUnavailable)
	_, err = e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"ep"}`)})
	wantFault(t, "database unavailable", err, fault.ServiceUnavailable)
}

func TestIssueChecksEndpointThenMode(t *testing.T) {
	for _, webRTC := range []bool{true, false} {
		e := newEnv(t)
		e.service.WebRTC = webRTC
		for body, code := range map[string]fault.Code{
			`{"endpointId":"off"}`:                 fault.NotFound,
			`{"endpointId":"far"}`:                 fault.NotFound,
			`{"endpointId":"none","mode":"chat"}`:  fault.NotFound,
			`{"endpointId":"chat"}`:                map[bool]fault.Code{true: fault.Validation, false: fault.WebRTCDisabled}[webRTC],
			`{"endpointId":"chat","mode":"audio"}`: fault.Validation,
			`{"endpointId":"far","mode":"fax"}`:    fault.Validation,
		} {
			_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(body)})
			wantFault(t, body, err, code)
			if foreign := fault.From(err); code == fault.NotFound && foreign.Message != "Endpoint not found or disabled." {
				t.Errorf("%s differs from an unknown endpoint: %s", body, foreign.Message)
			}
		}
		e.issue(t, `{"endpointId":"chat","mode":"chat"}`)
		_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"chat","mode":"audio"}`)})
		if text := fault.From(err).Message; text != "/mode: This endpoint does not support mode audio. Supported: chat." {
			t.Errorf("rejected with %q", text)
		}
	}
}

func TestIdempotencyKeyIsRememberedForADay(t *testing.T) {
	e := newEnv(t)
	const body = `{"endpointId":"ep"}`
	first := e.issue(t, body, "k")
	e.advance(24*time.Hour - time.Millisecond)
	if again := e.issue(t, ` {"endpointId" : "ep"}`, "k"); encode(t, again) != encode(t, first) {
		t.Errorf("got\n%s, want\n%s", encode(t, again), encode(t, first))
	}
	_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"none"}`), IdempotencyKeys: []string{"k"}})
	wantFault(t, "other body", err, fault.Idempotency)
	e.advance(time.Millisecond)
	if later := e.issue(t, body, "k"); later.SessionID == first.SessionID {
		t.Error("the key is remembered for more than a day")
	}
	if a, b := e.issue(t, body), e.issue(t, body); a.SessionID == b.SessionID {
		t.Error("two requests without a key got one session")
	}
}

// raced is a store on which a concurrent request with the same key always wins.
type raced struct {
	session.Store
	winner session.Session
}

func (r raced) CreateSession(ctx context.Context, s session.Session, key session.IdempotencyRecord, staleBefore time.Time) (bool, error) {
	if _, err := r.Store.CreateSession(ctx, r.winner, key, staleBefore); err != nil {
		return false, err
	}
	return r.Store.CreateSession(ctx, s, key, staleBefore)
}

func TestConcurrentDuplicateGetsFirstResponse(t *testing.T) {
	e := newEnv(t)
	e.service.Store = raced{e.db, session.Session{
		ID: "ses_winner", TeamID: "t1", EndpointID: "ep", Mode: endpoint.WebRTC, DuplicatePolicy: session.Replace, TokenID: "j",
		IssuedAt: start, RedeemBy: start, ExpiresAt: start,
	}}
	if a := e.issue(t, `{"endpointId":"ep"}`, "k"); a.SessionID != "ses_winner" {
		t.Errorf("got %s", a.SessionID)
	}
}

// expiring is a store in which a key expires after CreateSession has found it.
type expiring struct{ session.Store }

func (expiring) CreateSession(context.Context, session.Session, session.IdempotencyRecord, time.Time) (bool, error) {
	return false, nil
}

func TestExpiringIdempotencyKeyAsksForRetry(t *testing.T) {
	e := newEnv(t)
	e.service.Store = expiring{e.db}
	_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"ep"}`), IdempotencyKeys: []string{"k"}})
	wantFault(t, "key without a session", err, fault.ServiceUnavailable)
}
