package session_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"telapi/internal/audit"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/session"
	"telapi/internal/team"
	"telapi/test/testkit"
)

func TestSessionStates(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	e.wantState(t, issued.SessionID, "new session", session.Issued)
	if e.channels.presenceCalls > 0 {
		t.Error("presence was queried for a session that was never connected")
	}
	testkit.Must(t, testkit.ErrorOf(e.redeem(t.Context(), issued.Token)))
	e.wantState(t, issued.SessionID, "redeemed, without a browser", session.Disconnected)
	e.channels.connect(t, issued.SessionID)
	e.wantState(t, issued.SessionID, "with a browser", session.Connected)
	e.advance(10 * time.Minute)
	e.wantState(t, issued.SessionID, "after the deadline", session.Expired)

	ended := e.issue(t, `{"endpointId":"ep"}`)
	testkit.Must(t, e.service.End(t.Context(), ended.SessionID))
	e.wantState(t, ended.SessionID, "ended by the runtime", session.Ended)
	e.wantEnded(t)
	if !e.settled(t, ended.SessionID) {
		t.Error("a session that the runtime ended is unsettled")
	}

	e.channels.err = errUnavailable
	redeemed := e.issue(t, `{"endpointId":"ep"}`)
	testkit.Must(t, testkit.ErrorOf(e.redeem(t.Context(), redeemed.Token)))
	testkit.WantFault(t, "presence unavailable", testkit.ErrorOf(e.service.Get(t.Context(), "t1", redeemed.SessionID)), fault.ServiceUnavailable)
}

func TestDeleteRevokesBeforeEndingChannel(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep"}`)
	e.channels.err = errUnavailable
	testkit.WantFault(t, "key-value store unavailable", e.service.Delete(t.Context(), "t1", issued.SessionID), fault.ServiceUnavailable)
	e.wantState(t, issued.SessionID, "deleted while the key-value store is unavailable", session.Revoked)
	if e.settled(t, issued.SessionID) {
		t.Error("settled although the channel could not be ended")
	}
	_, err := e.redeem(t.Context(), issued.Token)
	testkit.WantFault(t, "revoked token", err, fault.SessionEnded)

	e.channels.err = nil
	for range 2 {
		testkit.Must(t, e.service.Delete(t.Context(), "t1", issued.SessionID))
		if !e.settled(t, issued.SessionID) {
			t.Error("not settled although the channel was ended")
		}
	}
	other := e.issue(t, `{"endpointId":"ep"}`).SessionID
	e.channels.err = errUnavailable
	err = e.service.Revoke(t.Context(), other, func(string) error { return nil })
	testkit.WantFault(t, "revocation while the key-value store is unavailable", err, fault.ServiceUnavailable)
	if e.settled(t, other) {
		t.Error("revoked session is settled although the channel could not be ended")
	}
	e.channels.err = nil
	if want := issued.SessionID + " revoked"; e.channels.ended[0] != want {
		t.Errorf("ended channels %q, want %q first", e.channels.ended, want)
	}
	for _, team := range []string{"t2", ""} {
		testkit.WantFault(t, "get foreign session", testkit.ErrorOf(e.service.Get(t.Context(), team, issued.SessionID)), fault.NotFound)
		testkit.WantFault(t, "delete foreign session", e.service.Delete(t.Context(), team, issued.SessionID), fault.NotFound)
	}
	e.service.Store = failingStore{e.db, errUnavailable}
	testkit.WantFault(t, "delete without database", e.service.Delete(t.Context(), "t1", issued.SessionID), fault.ServiceUnavailable)
	_, err = e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"ep"}`)})
	testkit.WantFault(t, "issue without database", err, fault.ServiceUnavailable)
}

func TestIssueChecksEndpointThenMode(t *testing.T) {
	for _, webRTC := range []bool{true, false} {
		e := newEnv(t)
		e.service.WebRTC = webRTC
		for body, code := range map[string]fault.Code{
			`{"endpointId":"disabled"}`:             fault.NotFound,
			`{"endpointId":"foreign"}`:              fault.NotFound,
			`{"endpointId":"none","mode":"chat"}`:   fault.NotFound,
			`{"endpointId":"chat"}`:                 map[bool]fault.Code{true: fault.Validation, false: fault.WebRTCDisabled}[webRTC],
			`{"endpointId":"chat","mode":"audio"}`:  fault.Validation,
			`{"endpointId":"foreign","mode":"fax"}`: fault.Validation,
		} {
			_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(body)})
			testkit.WantFault(t, body, err, code)
			const want = "Endpoint not found or disabled."
			if message := fault.From(err).Message; code == fault.NotFound && message != want {
				t.Errorf("%s: message %q, want %q as for an unknown endpoint", body, message, want)
			}
		}
		e.issue(t, `{"endpointId":"chat","mode":"chat"}`)
		_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"chat","mode":"audio"}`)})
		const want = "/mode: This endpoint does not support mode audio. Supported: chat."
		testkit.Equal(t, "message", fault.From(err).Message, want)
	}
}

func TestIdempotencyKeyIsRememberedForADay(t *testing.T) {
	e := newEnv(t)
	const body = `{"endpointId":"ep"}`
	first := e.issue(t, body, "k")
	e.advance(24*time.Hour - time.Millisecond)
	if again := e.issue(t, ` {"endpointId" : "ep"}`, "k"); encode(t, again) != encode(t, first) {
		t.Errorf("the repeated request got\n%s, want the first response\n%s", encode(t, again), encode(t, first))
	}
	_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"none"}`), IdempotencyKeys: []string{"k"}})
	testkit.WantFault(t, "other body", err, fault.Idempotency)
	e.advance(time.Millisecond)
	if later := e.issue(t, body, "k"); later.SessionID == first.SessionID {
		t.Error("the key is remembered for more than a day")
	}
	if a, b := e.issue(t, body), e.issue(t, body); a.SessionID == b.SessionID {
		t.Error("two requests without a key got one session")
	}
}

// The repeated request gets the first response, though its token is worth nothing any more.
func TestUsedIdempotencyKeyReturnsSessionOfDeletedEndpoint(t *testing.T) {
	e := newEnv(t)
	const body = `{"endpointId":"ep"}`
	first := e.issue(t, body, "k")
	testkit.Must(t, e.db.DeleteEndpoint(t.Context(), "ep", func(team.Endpoint) ([]audit.Entry, error) { return nil, nil }))
	e.service.Endpoints = team.NewEndpointCatalog(e.db, team.Deployment{}) // its cache is empty
	if again := e.issue(t, body, "k"); encode(t, again) != encode(t, first) {
		t.Errorf("the repeated request got\n%s, want the first response\n%s", encode(t, again), encode(t, first))
	}
	testkit.WantFault(t, "redeem", testkit.ErrorOf(e.redeem(t.Context(), first.Token)), fault.SessionEnded)
	testkit.WantFault(t, "unused key", testkit.ErrorOf(e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(body), IdempotencyKeys: []string{"unused"}})), fault.NotFound)
}

func TestUsedIdempotencyKeyDoesNotBypassDisabledWebRTC(t *testing.T) {
	e := newEnv(t)
	const webRTC, chat = `{"endpointId":"ep"}`, `{"endpointId":"ep","mode":"chat"}`
	issued := e.issue(t, webRTC, "webrtc")
	chatSession := e.issue(t, chat, "chat")
	e.service.WebRTC = false
	for _, tt := range []struct {
		body, key string
		want      fault.Code
	}{
		{webRTC, "webrtc", fault.WebRTCDisabled},
		{webRTC, "chat", fault.WebRTCDisabled},
		{webRTC, "unused", fault.WebRTCDisabled},
		{chat, "webrtc", fault.Idempotency},
	} {
		response, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(tt.body), IdempotencyKeys: []string{tt.key}})
		testkit.WantFault(t, tt.body+" with key "+tt.key, err, tt.want)
		if response.Token != "" {
			t.Errorf("%s with key %s: got a token with the error", tt.body, tt.key)
		}
	}
	if again := e.issue(t, chat, "chat"); again.SessionID != chatSession.SessionID {
		t.Errorf("the repeated chat request got session %s, want %s", again.SessionID, chatSession.SessionID)
	}
	e.service.WebRTC = true // the rejected requests used up no key
	if again := e.issue(t, webRTC, "webrtc"); again.SessionID != issued.SessionID {
		t.Errorf("with WebRTC enabled again the key returns session %s, want %s", again.SessionID, issued.SessionID)
	}
	if e.issue(t, webRTC, "unused").SessionID == issued.SessionID {
		t.Error("the key of a rejected request is bound to another session")
	}
}

// racingStore is a database on which a concurrent request with the same key always
// creates its session, winner, first.
type racingStore struct {
	session.Store
	winner session.Session
}

func (r racingStore) CreateSession(ctx context.Context, s session.Session, key session.IdempotencyRecord, staleBefore time.Time) (bool, error) {
	if _, err := r.Store.CreateSession(ctx, r.winner, key, staleBefore); err != nil {
		return false, err
	}
	return r.Store.CreateSession(ctx, s, key, staleBefore)
}

func TestConcurrentDuplicateGetsFirstResponse(t *testing.T) {
	e := newEnv(t)
	e.service.Store = racingStore{e.db, session.Session{
		ID: "ses_winner", TeamID: "t1", EndpointID: "ep", Mode: team.WebRTC, DuplicatePolicy: session.Replace, TokenID: "j",
		IssuedAt: start, RedeemBy: start, ExpiresAt: start,
	}}
	if issued := e.issue(t, `{"endpointId":"ep"}`, "k"); issued.SessionID != "ses_winner" {
		t.Errorf("the duplicate got session %s, want ses_winner", issued.SessionID)
	}
}

// expiringKeyStore is a database in which an idempotency key expires after
// CreateSession has found it.
type expiringKeyStore struct{ session.Store }

func (expiringKeyStore) CreateSession(context.Context, session.Session, session.IdempotencyRecord, time.Time) (bool, error) {
	return false, nil
}

func TestExpiringIdempotencyKeyIsRetryable(t *testing.T) {
	e := newEnv(t)
	e.service.Store = expiringKeyStore{e.db}
	_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"ep"}`), IdempotencyKeys: []string{"k"}})
	testkit.WantFault(t, "key without a session", err, fault.ServiceUnavailable)
}

func TestDeletedSessionKeepsFinalState(t *testing.T) {
	e := newEnv(t)
	revoked, ended := e.issue(t, `{"endpointId":"ep"}`), e.issue(t, `{"endpointId":"ep"}`)
	testkit.Must(t, e.service.End(t.Context(), ended.SessionID))
	for _, issued := range []session.TokenResponse{revoked, ended} {
		testkit.Must(t, e.service.Delete(t.Context(), "t1", issued.SessionID))
	}
	e.wantEnded(t, revoked.SessionID+" revoked", ended.SessionID+" ended")
	_, err := e.service.Get(t.Context(), "t1", "none")
	if f := fault.From(err); f.Code != fault.NotFound || f.Message != "Session not found." {
		t.Errorf("error %v, want the one of a foreign session", err)
	}
}

func TestICEServersAreForWebRTCOnly(t *testing.T) {
	e := newEnv(t)
	e.service.ICE = session.ICEConfig{Servers: []config.ICEServer{{URLs: []string{"turn:a"}}}, Secret: "north"}
	for _, mode := range []team.Mode{team.WebRTC, team.Chat} {
		issued := e.issue(t, `{"endpointId":"ep","mode":"`+string(mode)+`"}`)
		runtime := e.service.RuntimeICEServers(e.session(t, issued.SessionID))
		if want := map[team.Mode]int{team.WebRTC: 1}[mode]; issued.ICEServers == nil || len(issued.ICEServers) != want || len(runtime) != want {
			t.Errorf("%s: the browser gets %v, the runtime %v, want %d", mode, issued.ICEServers, runtime, want)
		}
		if mode == team.WebRTC && runtime[0].Username != issued.ICEServers[0].Username+":runtime" {
			t.Errorf("the runtime's user is %q, the browser's %q", runtime[0].Username, issued.ICEServers[0].Username)
		}
	}
}

// failingEndpoints are endpoints in a database that fails.
type failingEndpoints struct {
	team.EndpointStore
	err error
}

func (s failingEndpoints) Endpoint(context.Context, string) (team.Endpoint, error) {
	return team.Endpoint{}, s.err
}

func TestErrorsOfDatabaseAreNotHidden(t *testing.T) {
	e := newEnv(t)
	issued := e.issue(t, `{"endpointId":"ep"}`)
	broken := errors.New("broken")
	issue := func() error {
		_, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{Body: []byte(`{"endpointId":"ep"}`)})
		return err
	}
	e.service.Store = failingStore{err: broken}
	testkit.WantError(t, "create session", issue(), broken)
	testkit.WantError(t, "end session", e.service.End(t.Context(), issued.SessionID), broken)
	e.service.Store, e.service.Endpoints = e.db, team.NewEndpointCatalog(failingEndpoints{err: broken}, team.Deployment{})
	if err := issue(); !errors.Is(err, broken) || fault.Is(err, fault.NotFound) {
		t.Errorf("get endpoint: %v, want %v", err, broken)
	}
	e.service.Endpoints = team.NewEndpointCatalog(failingEndpoints{err: fault.New(fault.NotFound, "Endpoint not found.")}, team.Deployment{})
	_, _, err := e.service.Verify(t.Context(), e.service.Parse(issued.Token))
	testkit.WantFault(t, "endpoint deleted", err, fault.SessionEnded)
}
