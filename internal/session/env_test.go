package session_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/redisstore"
	"telapi/internal/session"
	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/test/embedded"
	"telapi/test/sqlite"
	"telapi/test/testkit"
)

var start = time.Date(2026, 11, 15, 9, 30, 0, 250_000_000, time.UTC)

const testSecret = redact.Secret("0123456789abcdef0123456789abcdef")

// errUnavailable is the error of a store that cannot be reached.
var errUnavailable = fault.Unavailable("The store", nil)

// env is a service and a sweeper on the embedded stores, with a manual clock.
type env struct {
	db       *sqlstore.Store
	channels *channels
	tokens   *session.Tokens
	service  *session.Service
	sweeper  *session.Sweeper

	mu  sync.Mutex
	now time.Time
}

// newEnv returns an environment with the teams t1 and t2 and some endpoints.
func newEnv(t *testing.T) *env {
	t.Helper()
	e := newEnvWithoutChannels(t)
	e.channels = &channels{Channels: redisstore.NewChannels(embedded.Open(t), wire.DefaultChannelLimits())}
	e.service.Channels = e.channels
	return e
}

// newEnvWithoutChannels returns an environment without network connections, for
// tests in a synctest bubble.
func newEnvWithoutChannels(t *testing.T) *env {
	t.Helper()
	db := sqlite.Open(t, t.TempDir())
	for _, id := range []string{"t1", "t2"} {
		testkit.Must(t, db.CreateTeam(t.Context(), team.Team{ID: id, Name: id, CreatedAt: start}))
	}
	for _, ep := range []team.Endpoint{
		{ID: "ep", TeamID: "t1", Enabled: true, Modes: team.Modes, Origins: []string{"https://a.example"}},
		{ID: "chat", TeamID: "t1", Enabled: true, Modes: []team.Mode{team.Chat}},
		{ID: "disabled", TeamID: "t1", Modes: team.Modes},
		{ID: "foreign", TeamID: "t2", Enabled: true, Modes: team.Modes},
	} {
		ep.Name, ep.CreatedAt, ep.UpdatedAt = ep.ID, start, start
		testkit.Must(t, db.CreateEndpoint(t.Context(), ep))
	}
	e := &env{db: db, tokens: session.NewTokens(auth.Secrets{Current: testSecret}), now: start}
	e.service = &session.Service{
		Store: db, Endpoints: team.NewEndpointCatalog(db, team.Deployment{}), Tokens: e.tokens,
		WebRTC: true, Limits: channel.DefaultConnectionLimits(), Now: e.clock,
	}
	e.sweeper = e.newSweeper(15*time.Minute, 30*24*time.Hour)
	return e
}

func (e *env) newSweeper(idle, retention time.Duration) *session.Sweeper {
	return session.NewSweeper(e.service, idle, retention, slog.New(slog.DiscardHandler))
}

func (e *env) clock() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now
}

func (e *env) advance(d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.now = e.now.Add(d)
}

func (e *env) issue(t *testing.T, body string, idempotencyKeys ...string) session.TokenResponse {
	t.Helper()
	response, err := e.service.Issue(t.Context(), "t1", session.TokenRequest{
		Body: []byte(body), IdempotencyKeys: idempotencyKeys, BaseURL: "https://api.example",
	})
	testkit.Must(t, err)
	return response
}

// redeem verifies and redeems a token, as the handshake of a socket does.
func (e *env) redeem(ctx context.Context, token string) (session.Session, error) {
	s, _, err := e.service.Verify(ctx, e.service.Parse(token))
	if err != nil {
		return session.Session{}, err
	}
	if err := e.service.Redeem(ctx, s.ID); err != nil {
		return session.Session{}, err
	}
	return e.db.Session(ctx, s.ID)
}

// connect issues and redeems a token, connects a browser and returns the session's ID.
func (e *env) connect(t *testing.T, body string) string {
	t.Helper()
	s, err := e.redeem(t.Context(), e.issue(t, body).Token)
	testkit.Must(t, err)
	e.channels.connect(t, s.ID)
	return s.ID
}

// session returns the stored session, or the zero value if it is not found.
func (e *env) session(t *testing.T, id string) session.Session {
	t.Helper()
	s, err := e.db.Session(t.Context(), id)
	if err != nil && !fault.Is(err, fault.NotFound) {
		t.Fatal(err)
	}
	return s
}

// wantState checks the state that a session's team sees.
func (e *env) wantState(t *testing.T, id, when string, want session.State) {
	t.Helper()
	if view, err := e.service.Get(t.Context(), "t1", id); err != nil || view.State != want {
		t.Errorf("%s: the session is %q (error %v), want %q", when, view.State, err, want)
	}
}

// notEnded is the final state in the database of a session that has not ended.
const notEnded session.State = ""

// wantFinalState checks the final state in the database.
func (e *env) wantFinalState(t *testing.T, id, when string, want session.State) {
	t.Helper()
	testkit.Equal(t, fmt.Sprintf("%s: the final state", when), e.session(t, id).EndedAs, want)
}

// wantEnded checks the calls of EndChannel: "ID reason".
func (e *env) wantEnded(t *testing.T, want ...string) {
	t.Helper()
	testkit.Equal(t, "ended channels", e.channels.ended, want)
}

// settled reports whether an ended session is settled.
func (e *env) settled(t *testing.T, id string) bool {
	t.Helper()
	unsettled, err := e.db.UnsettledSessions(t.Context(), e.clock().Add(time.Hour), 1000)
	testkit.Must(t, err)
	return !slices.ContainsFunc(unsettled, func(s session.Session) bool { return s.ID == id })
}

// sweep sweeps until the database does not time out, as it may on a busy machine.
func (e *env) sweep(t *testing.T) {
	t.Helper()
	testkit.Until(t, "a complete sweep", func() bool {
		err := e.sweeper.Sweep(t.Context())
		if err != nil && !fault.Is(err, fault.ServiceUnavailable) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// channels records calls to the channels of the embedded store. Its methods fail
// with err while that is set.
type channels struct {
	*redisstore.Channels

	mu            sync.Mutex
	err           error
	ended         []string // "ID reason" of each EndChannel
	presenceCalls int
}

func (c *channels) EndChannel(ctx context.Context, id, reason string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.ended = append(c.ended, id+" "+reason)
	return c.Channels.EndChannel(ctx, id, reason)
}

func (c *channels) Presence(ctx context.Context, ids []string) (connected, ended []string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.presenceCalls++; c.err != nil {
		return nil, nil, c.err
	}
	return c.Channels.Presence(ctx, ids)
}

func (c *channels) connect(t *testing.T, id string) {
	t.Helper()
	if _, err := c.Attach(t.Context(), channel.AttachRequest{
		ChannelID: id, ConnectionID: "browser", Lease: time.Hour, TeamID: "t1", EndpointID: "ep", Mode: "chat", Entry: []byte(`{"kind":"session"}`),
	}); err != nil {
		t.Fatal(err)
	}
}

func (c *channels) disconnect(t *testing.T, id string) {
	t.Helper()
	testkit.Must(t, c.Detach(t.Context(), channel.Owner{ChannelID: id, ConnectionID: "browser", Number: "1"}, []byte(`{"kind":"session"}`)))
}

// failingStore is a database that fails.
type failingStore struct {
	session.Store
	err error
}

func (s failingStore) Session(context.Context, string) (session.Session, error) {
	return session.Session{}, s.err
}

func (s failingStore) RedeemSession(context.Context, string, time.Time) error { return s.err }

func (s failingStore) CreateSession(context.Context, session.Session, session.IdempotencyRecord, time.Time) (bool, error) {
	return false, s.err
}

func (s failingStore) EndSession(context.Context, string, session.State, time.Time, ...audit.Entry) (bool, error) {
	return false, s.err
}

func encode(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v, json.Deterministic(true))
	testkit.Must(t, err)
	return string(text)
}
