package session

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/internal/config"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/redact"
)

var us = auth.Principal{TeamID: "t1"}

func TestSessionGoesThroughItsStates(t *testing.T) {
	w := newWorld()
	a := w.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	if got := w.state(t, a.SessionID); got != Issued || w.asked > 0 {
		t.Errorf("new session is %s", got)
	}
	if _, err := w.enter(t.Context(), a.Token); err != nil {
		t.Fatal(err)
	}
	for live, want := range map[bool]State{true: Connected, false: Disconnected} {
		w.live[a.SessionID] = live
		if got := w.state(t, a.SessionID); got != want {
			t.Errorf("with a browser %v it is %s", live, got)
		}
	}
	w.pass(10 * time.Minute)
	if got := w.state(t, a.SessionID); got != Expired {
		t.Errorf("over its time and not yet swept it is %s", got)
	}
	other := w.issue(t, `{"endpointId":"ep"}`)
	if err := w.service.End(t.Context(), other.SessionID); err != nil || w.state(t, other.SessionID) != Ended || len(w.events) > 0 || !w.settled[other.SessionID] {
		t.Errorf("ended by the runtime: %s, %v, %v", w.state(t, other.SessionID), w.events, err)
	}
	w.kvAway = fault.Unavailable("The store", nil)
	third := w.issue(t, `{"endpointId":"ep"}`)
	if _, err := w.enter(t.Context(), third.Token); err != nil {
		t.Fatal(err)
	}
	_, err := w.service.Get(t.Context(), "t1", third.SessionID)
	wantFault(t, "whether it is connected is not known", err, fault.ServiceUnavailable)
}

func TestTokenIsRedeemedInTimeAndGoodUntilTheSessionEnds(t *testing.T) {
	w := newWorld()
	a := w.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	late := w.issue(t, `{"endpointId":"ep","ttlSeconds":60,"maxSessionSeconds":600}`)
	w.pass(59 * time.Second)
	for range 2 { // checking redeems nothing
		if _, e, err := w.service.Verify(t.Context(), a.Token); err != nil || e.Origins[0] != "https://a.example" || w.state(t, a.SessionID) != Issued {
			t.Fatal(err)
		}
	}
	if _, err := w.enter(t.Context(), a.Token); err != nil {
		t.Fatal(err)
	}
	w.endpoints["ep"] = endpoint.Endpoint{ID: "ep", TeamID: "t1", Modes: endpoint.Modes} // disabled since
	w.pass(time.Second)
	if s, err := w.enter(t.Context(), a.Token); err != nil || !s.LastSeenAt.Equal(w.now) || !s.RedeemedAt.Equal(w.now.Add(-time.Second)) {
		t.Errorf("reconnect: %+v, %v", s, err)
	}
	_, _, err := w.service.Verify(t.Context(), late.Token)
	wantFault(t, "first redemption after redeemBy", err, fault.SessionEnded)
	w.pass(9 * time.Minute)
	_, err = w.enter(t.Context(), a.Token)
	wantFault(t, "session over its time", err, fault.SessionEnded)
	w.pass(1000 * time.Hour)
	_, _, err = w.service.Verify(t.Context(), a.Token)
	wantFault(t, "long over", err, fault.SessionEnded)
}

// A session's channel comes to be between the two: who ends the session before
// that has nothing to end.
func TestEndedBetweenCheckAndRedemption(t *testing.T) {
	w := newWorld()
	a := w.issue(t, `{"endpointId":"ep"}`)
	s, _, err := w.service.Verify(t.Context(), a.Token)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.service.Delete(t.Context(), "t1", a.SessionID); err != nil {
		t.Fatal(err)
	}
	w.events = nil
	wantFault(t, "revoked meanwhile", w.service.Redeem(t.Context(), s.ID), fault.SessionEnded)
	if want := []string{"ended " + a.SessionID + " revoked"}; !slices.Equal(w.events, want) {
		t.Errorf("told %v, want %v", w.events, want)
	}
	wantFault(t, "deleted meanwhile", w.service.Redeem(t.Context(), "none"), fault.SessionEnded)
	late := w.issue(t, `{"endpointId":"ep"}`)
	w.pass(time.Hour)
	wantFault(t, "over its time", w.service.Redeem(t.Context(), late.SessionID), fault.SessionEnded)
	w.kvAway = fault.Unavailable("The store", nil)
	wantFault(t, "nobody can be told", w.service.Redeem(t.Context(), s.ID), fault.ServiceUnavailable)
	w.dbAway = fault.Unavailable("The database", nil)
	wantFault(t, "database away", w.service.Redeem(t.Context(), s.ID), fault.ServiceUnavailable)
}

func TestRevokedSessionIsCommittedThenToldOf(t *testing.T) {
	w := newWorld()
	a := w.issue(t, `{"endpointId":"ep"}`)
	w.kvAway = fault.Unavailable("The store", nil)
	wantFault(t, "nobody can be told", w.service.Delete(t.Context(), "t1", a.SessionID), fault.ServiceUnavailable)
	if w.state(t, a.SessionID) != Revoked || w.settled[a.SessionID] {
		t.Error("not revoked, or taken for told")
	}
	_, err := w.enter(t.Context(), a.Token)
	wantFault(t, "revoked token", err, fault.SessionEnded)

	w.kvAway = nil
	for range 2 {
		if err := w.service.Delete(t.Context(), "t1", a.SessionID); err != nil || !w.settled[a.SessionID] {
			t.Fatal(err)
		}
	}
	if want := "ended " + a.SessionID + " revoked"; w.events[0] != want {
		t.Errorf("told %v, want %s", w.events, want)
	}
	for _, team := range []string{"t2", ""} {
		_, err := w.service.Get(t.Context(), team, a.SessionID)
		wantFault(t, "foreign session", err, fault.NotFound)
		wantFault(t, "foreign session", w.service.Delete(t.Context(), team, a.SessionID), fault.NotFound)
	}
	w.dbAway = fault.Unavailable("The database", nil)
	wantFault(t, "database away", w.service.Delete(t.Context(), "t1", a.SessionID), fault.ServiceUnavailable)
	_, err = w.service.Issue(t.Context(), us, TokenRequest{Body: []byte(`{"endpointId":"ep"}`)})
	wantFault(t, "database away", err, fault.ServiceUnavailable)
}

func TestKeyStandsForItsRequestADay(t *testing.T) {
	w := newWorld()
	const body = `{"endpointId":"ep"}`
	first := w.issue(t, body, "k")
	w.pass(24*time.Hour - time.Millisecond)
	if again := w.issue(t, ` {"endpointId" : "ep"}`, "k"); encode(t, again) != encode(t, first) {
		t.Errorf("got\n%s, want\n%s", encode(t, again), encode(t, first))
	}
	_, err := w.service.Issue(t.Context(), us, TokenRequest{Body: []byte(`{"endpointId":"none"}`), IdempotencyKeys: []string{"k"}})
	wantFault(t, "other body", err, fault.Idempotency)
	w.pass(time.Millisecond)
	if later := w.issue(t, body, "k"); later.SessionID == first.SessionID {
		t.Error("the key is remembered for more than a day")
	}
	if a, b := w.issue(t, body), w.issue(t, body); a.SessionID == b.SessionID {
		t.Error("two requests without a key got one session")
	}
}

// overtaken is a store on which a twin is always quicker.
type overtaken struct {
	*world
	twin Session
}

func (o overtaken) CreateSession(ctx context.Context, s Session, r IdempotencyRecord, staleBefore time.Time) (bool, error) {
	if _, err := o.world.CreateSession(ctx, o.twin, r, staleBefore); err != nil {
		return false, err
	}
	return o.world.CreateSession(ctx, s, r, staleBefore)
}

func TestOvertakenTwinGetsTheFirstOnesAnswer(t *testing.T) {
	w := newWorld()
	twin := Session{ID: "ses_twin", TeamID: "t1", EndpointID: "ep", Mode: endpoint.WebRTC, TokenID: "j", IssuedAt: start, RedeemBy: start, ExpiresAt: start}
	w.service.Store = overtaken{w, twin}
	if a := w.issue(t, `{"endpointId":"ep"}`, "k"); a.SessionID != "ses_twin" {
		t.Errorf("got %s", a.SessionID)
	}
}

// forgetful is a store that lets go of a key between being asked to use it and
// being asked what it stands for.
type forgetful struct{ *world }

func (f forgetful) CreateSession(context.Context, Session, IdempotencyRecord, time.Time) (bool, error) {
	return false, nil
}

func TestKeyThatRunsOutMeanwhileIsSentAgain(t *testing.T) {
	w := newWorld()
	w.service.Store = forgetful{w}
	_, err := w.service.Issue(t.Context(), us, TokenRequest{Body: []byte(`{"endpointId":"ep"}`), IdempotencyKeys: []string{"k"}})
	wantFault(t, "no session", err, fault.ServiceUnavailable)
}

func TestModeIsCheckedAfterTheEndpoint(t *testing.T) {
	for _, webRTC := range []bool{true, false} {
		w := newWorld()
		w.service.WebRTC = webRTC
		for body, code := range map[string]fault.Code{
			`{"endpointId":"off"}`:                 fault.NotFound,
			`{"endpointId":"far"}`:                 fault.NotFound,
			`{"endpointId":"none","mode":"chat"}`:  fault.NotFound,
			`{"endpointId":"chat"}`:                map[bool]fault.Code{true: fault.Validation, false: fault.WebRTCDisabled}[webRTC],
			`{"endpointId":"chat","mode":"audio"}`: fault.Validation,
			`{"endpointId":"far","mode":"fax"}`:    fault.Validation,
		} {
			_, err := w.service.Issue(t.Context(), us, TokenRequest{Body: []byte(body)})
			wantFault(t, body, err, code)
			if foreign := fault.From(err); code == fault.NotFound && foreign.Message != "There is no such endpoint, or it is disabled." {
				t.Errorf("%s can be told from other endpoints that are not there: %s", body, foreign.Message)
			}
		}
		w.issue(t, `{"endpointId":"chat","mode":"chat"}`)
		_, err := w.service.Issue(t.Context(), us, TokenRequest{Body: []byte(`{"endpointId":"chat","mode":"audio"}`)})
		if text := fault.From(err).Message; text != "/mode: This endpoint has no mode audio; it has chat." {
			t.Errorf("refused with %q", text)
		}
	}
}

func TestWebRTCTokenIsRefusedWhileWebRTCIsOff(t *testing.T) {
	w := newWorld()
	call, chat := w.issue(t, `{"endpointId":"ep"}`), w.issue(t, `{"endpointId":"ep","mode":"chat"}`)
	w.service.WebRTC = false
	_, err := w.enter(t.Context(), call.Token)
	wantFault(t, "webrtc", err, fault.WebRTCDisabled)
	if _, err := w.enter(t.Context(), chat.Token); err != nil {
		t.Errorf("chat: %v", err)
	}
	if w.state(t, call.SessionID) != Issued {
		t.Error("the refused token was redeemed")
	}
}

func TestForeignAndForgedTokensAreRefused(t *testing.T) {
	w := newWorld()
	a := w.issue(t, `{"endpointId":"ep"}`)
	s := w.sessions[a.SessionID]
	sign := func(change func(*Session)) string {
		changed := s
		change(&changed)
		token, err := w.tokens.Sign(changed)
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
	if _, _, err := w.service.Verify(t.Context(), with(testSecret, jwt.SigningMethodHS256, good)); err != nil {
		t.Fatalf("the test's own token: %v", err)
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
		"an older token's id":  sign(func(s *Session) { s.TokenID = "older" }),
		"another team":         sign(func(s *Session) { s.TeamID = "t2" }),
		"another endpoint":     sign(func(s *Session) { s.EndpointID = "chat" }),
		"another mode":         sign(func(s *Session) { s.Mode = endpoint.Chat }),
		"surrounded by blanks": " " + a.Token,
	} {
		s, e, err := w.service.Verify(t.Context(), token)
		wantFault(t, name, err, fault.Unauthorized)
		if s.ID != "" || e.ID != "" || err == nil || fault.From(err).Message != "The call token is missing or not valid. Ask for a new one." || fault.From(err).Cause == nil {
			t.Errorf("%s: refused with %v %v %v", name, s, e, err)
		}
	}
	_, _, err := w.service.Verify(t.Context(), sign(func(s *Session) { s.ID = "ses_gone" }))
	wantFault(t, "well signed, of a session nobody knows", err, fault.SessionEnded)
	if _, err := auth.NewConsoleTokens(auth.Secrets{Current: testSecret}, w.clock).Verify(a.Token); !fault.Is(err, fault.Unauthorized) {
		t.Errorf("a call token passes for a console JWT: %v", err)
	}
	w.dbAway = fault.Unavailable("The database", errors.New("away"))
	_, _, err = w.service.Verify(t.Context(), a.Token)
	wantFault(t, "database away", err, fault.ServiceUnavailable)
}

func TestSameSessionIsSignedTheSame(t *testing.T) {
	w := newWorld()
	a := w.issue(t, `{"endpointId":"ep"}`)
	for range 20 {
		if again, err := w.tokens.Sign(w.sessions[a.SessionID]); err != nil || again != a.Token {
			t.Fatalf("%v\n%s\n%s", err, again, a.Token)
		}
	}
}

func TestServersOfACallGetTheirCredentials(t *testing.T) {
	s := Session{ID: "ses_1", Mode: endpoint.WebRTC, ExpiresAt: time.Unix(1_800_000_000, 0)}
	ice := ICEConfig{Secret: "north", Servers: []config.ICEServer{
		{URLs: []string{"stun:a"}},
		{URLs: []string{"turn:b", "turns:b"}},
		{URLs: []string{"turn:c"}, Username: "u", Credential: "p"},
	}}
	// printf 1800000000:ses_1 | openssl dgst -sha1 -hmac north -binary | base64
	want := `[{"urls":["stun:a"]},{"urls":["turn:b","turns:b"],"username":"1800000000:ses_1","credential":"Fyi7AQrQkE6ZPicuax9m0pEdt3c="},{"urls":["turn:c"],"username":"u","credential":"p"}]`
	if got := encode(t, ice.servers(s)); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
}

func TestTimesOfATokenRequest(t *testing.T) {
	for body, want := range map[string][2]int{
		``:                          {300, 3600},
		`"ttlSeconds":10`:           {10, 3600},
		`"ttlSeconds":3600`:         {3600, 3600},
		`"maxSessionSeconds":60`:    {60, 60},
		`"maxSessionSeconds":86400`: {300, 86400},
		`"maxSessionSeconds":301`:   {300, 301},
		`"ttlSeconds":null,"maxSessionSeconds":null`: {300, 3600},
	} {
		w := newWorld()
		a := w.issue(t, strings.Replace(`{"endpointId":"ep",`+body+`}`, ",}", "}", 1))
		issued := start.Truncate(time.Second)
		if a.RedeemBy != issued.Add(time.Duration(want[0])*time.Second) || a.ExpiresAt != issued.Add(time.Duration(want[1])*time.Second) {
			t.Errorf("{%s}: redeem by %v, expires %v", body, a.RedeemBy, a.ExpiresAt)
		}
	}
	for _, body := range []string{`"ttlSeconds":9`, `"ttlSeconds":3601,"maxSessionSeconds":86400`, `"maxSessionSeconds":59,"ttlSeconds":10`, `"maxSessionSeconds":86401`, `"ttlSeconds":61,"maxSessionSeconds":60`} {
		_, err := parseRequest([]byte(`{"endpointId":"ep",`+body+`}`), nil)
		if fault.From(err).Code != fault.Validation || len(fault.From(err).Details.([]fault.Issue)) != 1 {
			t.Errorf("{%s}: %v", body, err)
		}
	}
}

func TestBodiesThatSayTheSameAreOne(t *testing.T) {
	digest := func(body string) string {
		w, err := parseRequest([]byte(body), nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.receipt.Digest
	}
	first := digest(`{"endpointId":"ep","metadata":{"n":9007199254740993,"s":"é"}}`)
	for body, same := range map[string]bool{
		"\n{ \"metadata\":{\"s\":\"\\u00e9\",\"n\":9007199254740993},\"endpointId\":\"ep\"}": true,
		`{"endpointId":"ep","metadata":{"n":9007199254740992,"s":"é"}}`:                      false,
		`{"endpointId":"ep","metadata":{"n":9007199254740993,"s":"é"},"more":1}`:             false,
		`{"endpointId":"ep","metadata":{"n":"9007199254740993","s":"é"}}`:                    false,
	} {
		if (digest(body) == first) != same {
			t.Errorf("%s: the same is not %v", body, same)
		}
	}
}

func FuzzRequest(f *testing.F) {
	for _, body := range []string{
		`{"endpointId":"ep","mode":"chat","identity":{"id":"1","name":"A"},"ttlSeconds":10,"maxSessionSeconds":60,"duplicatePolicy":"reject","metadata":{"a":[1,{}]}}`,
		`{"endpointId":1,"identity":{"id":[]},"ttlSeconds":1e400,"metadata":"x"}`, `null`, `[`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", `{"metadata":{"x":"` + strings.Repeat("y", 5000) + `"}}`,
	} {
		f.Add([]byte(body), "key")
	}
	f.Fuzz(func(t *testing.T, body []byte, key string) {
		before := sha256.Sum256(body)
		w, err := parseRequest(body, []string{key})
		if sha256.Sum256(body) != before {
			t.Fatal("the body was changed")
		}
		if err != nil {
			if code := fault.From(err).Code; code != fault.Validation && code != fault.MalformedJSON {
				t.Fatalf("%q: %v", body, err)
			}
			return
		}
		s := w.session
		if s.EndpointID == "" || w.ttl < 10*time.Second || w.ttl > w.life || w.life > 24*time.Hour || len(s.Metadata) > 4096 || s.Metadata != nil && s.Metadata.Kind() != '{' ||
			len(w.receipt.Digest) != 64 || w.receipt.Key != key || s.DuplicatePolicy != Replace && s.DuplicatePolicy != Reject {
			t.Fatalf("%q gave %+v", body, w)
		}
		if again, err := parseRequest(append([]byte(" \n"), body...), []string{key}); err != nil || again.receipt.Digest != w.receipt.Digest {
			t.Fatalf("white space makes another body of %q: %v", body, err)
		}
	})
}
