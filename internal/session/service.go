package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/audit"
	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/team"
	"telapi/internal/telemetry"
)

const (
	// SocketPath is the path of a session's socket.
	SocketPath = "/ws/session"
	// Subprotocol is the WebSocket subprotocol of a session's socket.
	Subprotocol = "telapi.v1"

	// keyTTL is how long an idempotency key is remembered.
	keyTTL = 24 * time.Hour
)

// TokenRequest is a request for a call token.
type TokenRequest struct {
	Body            []byte
	IdempotencyKeys []string // values of the Idempotency-Key header; two or more are invalid
	BaseURL         string   // address at which the client reaches the service
}

// TokenResponse holds what a browser needs to open its socket.
type TokenResponse struct {
	SessionID    string                   `json:"sessionId"`
	Token        string                   `json:"token"`
	TokenType    string                   `json:"tokenType"`
	Mode         team.Mode                `json:"mode"`
	EndpointID   string                   `json:"endpointId"`
	RedeemBy     time.Time                `json:"redeemBy"`
	ExpiresAt    time.Time                `json:"expiresAt"`
	WSURL        string                   `json:"wsUrl"`
	Subprotocols []string                 `json:"subprotocols"`
	ICEServers   []wire.ICEServer         `json:"iceServers"`
	Limits       channel.ConnectionLimits `json:"limits"`
}

// View is a session as its team sees it.
type View struct {
	Session
	State State `json:"state"`
}

// Service issues, verifies, shows and revokes sessions.
type Service struct {
	Store     Store
	Endpoints *team.EndpointCatalog
	Tokens    *Tokens
	Failures  *auth.TokenFailures
	Channels  Channels
	WebRTC    bool // whether the deployment offers WebRTC
	ICE       ICEConfig
	Limits    channel.ConnectionLimits
	Now       func() time.Time
}

// Issue creates a session for a team. It checks the body, then the endpoint,
// then the mode. Requests with the same idempotency key and body get the same
// response, even if they are concurrent, or if the session has ended or the endpoint was
// deleted after the first one. But a mode that was disabled after it is rejected.
func (s *Service) Issue(ctx context.Context, teamID string, r TokenRequest) (TokenResponse, error) {
	session, record, err := parseTokenRequest(r, teamID, s.Now().UTC())
	if err == nil {
		session, err = s.findOrCreate(ctx, session, record)
	}
	if err != nil {
		return TokenResponse{}, err
	}
	token, err := s.Tokens.Sign(session)
	if err != nil {
		return TokenResponse{}, err
	}
	servers := []wire.ICEServer{}
	if session.Mode == team.WebRTC {
		servers = s.ICE.For(session.ID, session.ExpiresAt)
	}
	return TokenResponse{
		SessionID: session.ID, Token: token, TokenType: "call", Mode: session.Mode, EndpointID: session.EndpointID,
		RedeemBy: session.RedeemBy, ExpiresAt: session.ExpiresAt,
		WSURL:        "ws" + strings.TrimPrefix(r.BaseURL, "http") + SocketPath,
		Subprotocols: []string{Subprotocol}, ICEServers: servers, Limits: s.Limits,
	}, nil
}

// RuntimeICEServers returns the ICE servers for the runtime's side of a session of
// mode webrtc. Their credentials differ from those of the browser.
func (s *Service) RuntimeICEServers(session Session) []wire.ICEServer {
	if session.Mode != team.WebRTC {
		return nil
	}
	return s.ICE.For(session.ID+":runtime", session.ExpiresAt)
}

// findOrCreate stores a new session, or returns the one of an earlier request with the same key.
func (s *Service) findOrCreate(ctx context.Context, session Session, r IdempotencyRecord) (Session, error) {
	if r.Key != "" {
		if found, err := s.findByKey(ctx, session.TeamID, r); !fault.Is(err, fault.NotFound) {
			return found, cmp.Or(s.checkMode(session.Mode), err) // the mode may have been disabled since
		}
	}
	if err := s.checkEndpoint(ctx, session); err != nil {
		return Session{}, err
	}
	if parent := telemetry.Traceparent(ctx); parent != "" { // for CallToken.Traceparent
		session.TokenID += "." + parent
	}
	created, err := s.Store.CreateSession(ctx, session, r, r.At.Add(-keyTTL))
	if err != nil {
		return Session{}, fmt.Errorf("create session: %w", err)
	}
	if !created { // a concurrent request with the same key was first
		if session, err = s.findByKey(ctx, session.TeamID, r); fault.Is(err, fault.NotFound) {
			err = fault.New(fault.ServiceUnavailable, "This Idempotency-Key has just expired. Retry the request.").WithRetryAfter(time.Second)
		}
	}
	return session, err
}

// findByKey returns the session of an idempotency key. It fails with
// fault.NotFound if the key was not used within keyTTL.
func (s *Service) findByKey(ctx context.Context, teamID string, r IdempotencyRecord) (Session, error) {
	session, digest, err := s.Store.SessionByKey(ctx, teamID, r.Key, r.At.Add(-keyTTL))
	switch {
	case err != nil:
		return Session{}, fmt.Errorf("look up idempotency key: %w", err)
	case digest != r.Digest:
		return Session{}, fault.New(fault.Idempotency, "This Idempotency-Key was used with a different body. Use a new key for a new request.")
	}
	return session, nil
}

func (s *Service) checkEndpoint(ctx context.Context, session Session) error {
	e, err := s.Endpoints.Endpoint(ctx, session.TeamID, session.EndpointID)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	if err != nil || !e.Enabled {
		return fault.New(fault.NotFound, "Endpoint not found or disabled.").WithCause(err)
	}
	if err := s.checkMode(session.Mode); err != nil {
		return err
	}
	var issues fault.Issues
	issues.Check(slices.Contains(e.Modes, session.Mode), "/mode", fault.IssueValue,
		"This endpoint does not support mode %s. Supported: %s.", session.Mode, fault.Join(e.Modes))
	return issues.Err()
}

// checkMode rejects a mode that the deployment has disabled.
func (s *Service) checkMode(m team.Mode) error {
	if m == team.WebRTC && !s.WebRTC {
		return fault.New(fault.WebRTCDisabled, "WebRTC is disabled in this deployment (FEATURE_WEBRTC=false). Retrying does not help: use mode audio or chat.")
	}
	return nil
}

// Get returns a team's session. A session of another team is not found.
func (s *Service) Get(ctx context.Context, teamID, id string) (View, error) {
	session, err := s.get(ctx, teamID, id)
	if err != nil {
		return View{}, err
	}
	state := session.State(s.Now(), false)
	if state == Disconnected { // or connected, which only the key-value store knows
		connected, ended, err := s.Channels.Presence(ctx, []string{id})
		if err != nil {
			return View{}, fmt.Errorf("query presence: %w", err)
		}
		if len(ended) > 0 { // the runtime ended the channel while no browser was connected
			if err := s.End(ctx, id); err != nil {
				return View{}, err
			}
			return s.Get(ctx, teamID, id)
		}
		state = session.State(s.Now(), len(connected) > 0)
	}
	return View{session, state}, nil
}

// Delete revokes a team's session in the database, then ends its channel. A
// session that has ended keeps its final state. If the channel cannot be ended,
// the token is revoked all the same; another Delete or the sweeper retries.
func (s *Service) Delete(ctx context.Context, teamID, id string) error {
	session, err := s.get(ctx, teamID, id)
	if err != nil {
		return err
	}
	return s.revoke(ctx, session)
}

func (s *Service) revoke(ctx context.Context, session Session, entries ...audit.Entry) error {
	revoked, err := s.Store.EndSession(ctx, session.ID, Revoked, s.Now(), entries...)
	if err != nil {
		return fmt.Errorf("revoke session: %w", err)
	}
	if revoked {
		session.EndedAs = Revoked
	}
	return s.endChannels(ctx, session.EndedAs, session.ID)
}

// endChannels ends the channels of ended sessions and gives the sessions' final
// state as the reason. Sessions whose channel cannot be ended stay unsettled, and
// the sweeper retries them.
func (s *Service) endChannels(ctx context.Context, finalState State, ids ...string) error {
	var settled []string
	var lastErr error
	for _, id := range ids {
		if err := s.Channels.EndChannel(ctx, id, string(finalState)); err != nil {
			lastErr = fmt.Errorf("end channel of session %s: %w", id, err)
			continue
		}
		settled = append(settled, id)
	}
	return errors.Join(lastErr, s.Store.SettleSessions(ctx, settled))
}

func (s *Service) get(ctx context.Context, teamID, id string) (Session, error) {
	session, err := s.Store.Session(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && session.TeamID != teamID {
		return Session{}, fault.New(fault.NotFound, "Session not found.")
	}
	if err != nil {
		return Session{}, fmt.Errorf("get session: %w", err)
	}
	return session, nil
}
