package session

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/redact"
)

var start = time.Date(2026, 11, 15, 9, 30, 0, 250_000_000, time.UTC)

const testSecret = redact.Secret("0123456789abcdef0123456789abcdef")

// world is a service and a sweeper on stores in memory, under one clock.
type world struct {
	service *Service
	sweeper *Sweeper
	tokens  *Tokens

	mu        sync.Mutex
	now       time.Time
	sessions  map[string]Session
	settled   map[string]bool
	receipts  map[string]IdempotencyRecord // by team and key
	ofKey     map[string]string
	endpoints map[string]endpoint.Endpoint
	live      map[string]bool // browsers in the key-value store
	over      map[string]bool // channels there that have ended
	events    []string        // what was ended, in order
	asked     int             // how often the key-value store was asked who is connected
	kvAway    error
	dbAway    error
}

func newWorld() *world {
	w := &world{
		now: start, sessions: map[string]Session{}, settled: map[string]bool{}, receipts: map[string]IdempotencyRecord{}, ofKey: map[string]string{}, live: map[string]bool{}, over: map[string]bool{},
		endpoints: map[string]endpoint.Endpoint{
			"ep":   {ID: "ep", TeamID: "t1", Enabled: true, Modes: endpoint.Modes, Origins: []string{"https://a.example"}},
			"chat": {ID: "chat", TeamID: "t1", Enabled: true, Modes: []endpoint.Mode{endpoint.Chat}},
			"off":  {ID: "off", TeamID: "t1", Modes: endpoint.Modes},
			"far":  {ID: "far", TeamID: "t2", Enabled: true, Modes: endpoint.Modes},
		},
	}
	w.tokens = NewTokens(auth.Secrets{Current: testSecret})
	w.service = &Service{
		Store: w, Endpoints: &endpoint.Service{Store: w}, Tokens: w.tokens, Channels: w,
		WebRTC: true, Limits: channel.DefaultLimits(), Now: w.clock,
	}
	w.sweeper = NewSweeper(w.service, w, 15*time.Minute, 30*24*time.Hour, slog.New(slog.DiscardHandler))
	return w
}

func (w *world) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = w.now.Add(d)
}

func (w *world) issue(t *testing.T, body string, keys ...string) TokenResponse {
	t.Helper()
	a, err := w.service.Issue(t.Context(), auth.Principal{TeamID: "t1"}, TokenRequest{Body: []byte(body), IdempotencyKeys: keys, BaseURL: "https://api.example"})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// enter does what a socket's handshake does.
func (w *world) enter(ctx context.Context, token string) (Session, error) {
	s, _, err := w.service.Verify(ctx, token)
	if err != nil {
		return Session{}, err
	}
	if err := w.service.Redeem(ctx, s.ID); err != nil {
		return Session{}, err
	}
	return w.Session(ctx, s.ID)
}

func (w *world) state(t *testing.T, id string) State {
	t.Helper()
	v, err := w.service.Get(t.Context(), "t1", id)
	if err != nil {
		t.Fatal(err)
	}
	return v.State
}

func wantFault(t *testing.T, what string, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Errorf("%s: %v, want %s", what, err, code)
	}
}

// What follows is the database.

func (w *world) CreateSession(_ context.Context, s Session, r IdempotencyRecord, staleBefore time.Time) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dbAway != nil {
		return false, w.dbAway
	}
	if r.Key != "" {
		if old, ok := w.receipts[s.TeamID+r.Key]; ok && old.At.After(staleBefore) {
			return false, nil
		}
		w.receipts[s.TeamID+r.Key], w.ofKey[s.TeamID+r.Key] = r, s.ID
	}
	w.sessions[s.ID] = s
	return true, nil
}

func (w *world) SessionByKey(_ context.Context, teamID, key string, staleBefore time.Time) (Session, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.receipts[teamID+key]
	if !ok || !r.At.After(staleBefore) {
		return Session{}, "", fault.New(fault.NotFound, "None.")
	}
	return w.sessions[w.ofKey[teamID+key]], r.Digest, w.dbAway
}

func (w *world) Session(_ context.Context, id string) (Session, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.sessions[id]
	if !ok && w.dbAway == nil {
		return s, fault.New(fault.NotFound, "None.")
	}
	return s, w.dbAway
}

func (w *world) RedeemSession(_ context.Context, id string, at time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.sessions[id]
	if !ok || !s.EndedAt.IsZero() || !at.Before(s.due()) {
		return fault.New(fault.NotFound, "None.")
	}
	if s.RedeemedAt.IsZero() {
		s.RedeemedAt = at
	}
	s.LastSeenAt = at
	w.sessions[id] = s
	return w.dbAway
}

func (w *world) EndSession(_ context.Context, id string, as State, at time.Time) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.sessions[id]
	if w.dbAway != nil || !ok || !s.EndedAt.IsZero() {
		return false, w.dbAway
	}
	s.EndedAt, s.EndedAs = at, as
	w.sessions[id] = s
	return true, nil
}

func (w *world) SettleSessions(_ context.Context, ids []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		w.settled[id] = true
	}
	return w.dbAway
}

func (w *world) list(limit int, wanted func(Session) bool) (found []Session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sessions {
		if wanted(s) {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b Session) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return found[:min(len(found), limit)]
}

func (w *world) ExpireSessions(ctx context.Context, now, unseenSince time.Time, limit int) (ids []string, err error) {
	for _, s := range w.list(limit, func(s Session) bool {
		return s.EndedAt.IsZero() && (!now.Before(s.due()) || !s.RedeemedAt.IsZero() && s.LastSeenAt.Before(unseenSince))
	}) {
		if first, _ := w.EndSession(ctx, s.ID, Expired, now); first {
			ids = append(ids, s.ID)
		}
	}
	return ids, w.dbAway
}

func (w *world) StaleSessions(_ context.Context, unseenSince time.Time, after string, limit int) (ids []string, err error) {
	for _, s := range w.list(limit, func(s Session) bool {
		return s.EndedAt.IsZero() && !s.RedeemedAt.IsZero() && s.LastSeenAt.Before(unseenSince) && s.ID > after
	}) {
		ids = append(ids, s.ID)
	}
	return ids, w.dbAway
}

func (w *world) UnsettledSessions(_ context.Context, endedBefore time.Time, limit int) ([]Session, error) {
	return w.list(limit, func(s Session) bool {
		return !s.EndedAt.IsZero() && s.EndedAt.Before(endedBefore) && !w.settled[s.ID]
	}), w.dbAway
}

func (w *world) TouchSessions(_ context.Context, seen map[string]time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, at := range seen {
		if s, ok := w.sessions[id]; ok && w.dbAway == nil && s.LastSeenAt.Before(at) {
			s.LastSeenAt = at
			w.sessions[id] = s
		}
	}
	return w.dbAway
}

func (w *world) PruneSessions(_ context.Context, before, endedBefore time.Time, _ int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, r := range w.receipts {
		if r.At.Before(before) {
			delete(w.receipts, key)
		}
	}
	for id, s := range w.sessions {
		if w.settled[id] && s.EndedAt.Before(endedBefore) {
			delete(w.sessions, id)
		}
	}
	return w.dbAway
}

// What follows is the key-value store.

func (w *world) EndChannel(_ context.Context, id, reason string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kvAway == nil {
		w.events = append(w.events, "ended "+id+" "+reason)
	}
	return w.kvAway
}

func (w *world) Presence(_ context.Context, ids []string) (connected, ended []string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	those := func(set map[string]bool) []string {
		return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !set[id] })
	}
	return those(w.live), those(w.over), w.kvAway
}

// What follows is the endpoints' store.

func (w *world) Endpoint(_ context.Context, id string) (endpoint.Endpoint, error) {
	e, ok := w.endpoints[id]
	if !ok {
		return e, fault.New(fault.NotFound, "None.")
	}
	return e, nil
}

func (w *world) CreateEndpoint(context.Context, endpoint.Endpoint) error { return nil }

func (w *world) UpdateEndpoint(context.Context, string, func(*endpoint.Endpoint) error) (endpoint.Endpoint, error) {
	return endpoint.Endpoint{}, nil
}

func (w *world) Endpoints(context.Context, string, string, int) ([]endpoint.Endpoint, error) {
	return nil, nil
}

func encode(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
