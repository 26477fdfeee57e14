package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
)

const (
	// SocketPath is where a session's socket is opened.
	SocketPath = "/ws/session"
	// Subprotocol is what a session's socket speaks.
	Subprotocol = "telapi.v1"

	idPrefix = "ses_"
	// keyLife is how long an idempotency key stands for its first request.
	keyLife = 24 * time.Hour
)

// TokenRequest is a request for a token as it came in.
type TokenRequest struct {
	Body []byte
	// IdempotencyKeys are the values of the header, of which there may be one.
	IdempotencyKeys []string
	BaseURL         string // the address the client reaches the service by
}

// TokenResponse is what a browser needs to open its socket.
type TokenResponse struct {
	SessionID    string         `json:"sessionId"`
	Token        string         `json:"token"`
	TokenType    string         `json:"tokenType"`
	Mode         endpoint.Mode  `json:"mode"`
	EndpointID   string         `json:"endpointId"`
	RedeemBy     time.Time      `json:"redeemBy"`
	ExpiresAt    time.Time      `json:"expiresAt"`
	WSURL        string         `json:"wsUrl"`
	Subprotocols []string       `json:"subprotocols"`
	ICEServers   []ICEServer    `json:"iceServers"`
	Limits       channel.Limits `json:"limits"`
}

// View is a session as its team sees it.
type View struct {
	SessionID  string        `json:"sessionId"`
	EndpointID string        `json:"endpointId"`
	Mode       endpoint.Mode `json:"mode"`
	State      State         `json:"state"`
	IssuedAt   time.Time     `json:"issuedAt"`
	RedeemBy   time.Time     `json:"redeemBy"`
	ExpiresAt  time.Time     `json:"expiresAt"`
	RedeemedAt time.Time     `json:"redeemedAt,omitzero"`
	EndedAt    time.Time     `json:"endedAt,omitzero"`
}

// Service gives sessions out, lets browsers in and takes sessions back.
type Service struct {
	Store     Store
	Endpoints *endpoint.Service
	Tokens    *Tokens
	Channels  Channels
	WebRTC    bool // whether the deployment offers it
	ICE       ICEConfig
	Limits    channel.Limits
	Now       func() time.Time
}

// Issue gives out a session. Its checks come in this order: body, endpoint,
// mode. The same order under the same idempotency key gets the same answer,
// whatever has become of the session since; twins that come at the same time,
// on any instance, get one session between them.
func (d *Service) Issue(ctx context.Context, who auth.Principal, o TokenRequest) (TokenResponse, error) {
	w, err := parseRequest(o.Body, o.IdempotencyKeys)
	if err != nil {
		return TokenResponse{}, err
	}
	now := d.Now().UTC()
	w.receipt.At = now
	s, found, err := d.replay(ctx, who.TeamID, w.receipt)
	if err != nil {
		return TokenResponse{}, err
	}
	if !found {
		if err := d.admit(ctx, who.TeamID, w.session); err != nil {
			return TokenResponse{}, err
		}
		s = newSession(who.TeamID, w, now)
		created, err := d.Store.CreateSession(ctx, s, w.receipt, now.Add(-keyLife))
		if err != nil {
			return TokenResponse{}, fmt.Errorf("create session: %w", err)
		}
		if !created { // a twin was quicker
			if s, found, err = d.replay(ctx, who.TeamID, w.receipt); err != nil {
				return TokenResponse{}, err
			}
			if !found {
				return TokenResponse{}, fault.New(fault.ServiceUnavailable, "This Idempotency-Key is being forgotten just now. Send the request again.").WithRetryAfter(time.Second)
			}
		}
	}
	return d.answer(s, o.BaseURL)
}

// replay finds the session that an idempotency key stands for.
func (d *Service) replay(ctx context.Context, teamID string, r IdempotencyRecord) (s Session, found bool, err error) {
	if r.Key == "" {
		return Session{}, false, nil
	}
	s, first, err := d.Store.SessionByKey(ctx, teamID, r.Key, r.At.Add(-keyLife))
	switch {
	case fault.Is(err, fault.NotFound):
		return Session{}, false, nil
	case err != nil:
		return Session{}, false, fmt.Errorf("look up idempotency key: %w", err)
	case first != r.Digest:
		return Session{}, false, fault.New(fault.Idempotency, "This Idempotency-Key was used with another body. Use a new key for a new request.")
	}
	return s, true, nil
}

// admit checks that the endpoint takes such a session now.
func (d *Service) admit(ctx context.Context, teamID string, s Session) error {
	e, err := d.Endpoints.Get(ctx, teamID, s.EndpointID)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	if err != nil || !e.Enabled {
		return fault.New(fault.NotFound, "There is no such endpoint, or it is disabled.").WithCause(err)
	}
	if err := d.offered(s.Mode); err != nil {
		return err
	}
	var issues fault.Issues
	if !slices.Contains(e.Modes, s.Mode) {
		issues.Add("/mode", fault.IssueValue, "This endpoint has no mode %s; it has %s.", s.Mode, fault.Join(e.Modes))
	}
	return issues.Err()
}

// offered refuses a mode that the deployment has switched off.
func (d *Service) offered(m endpoint.Mode) error {
	if m == endpoint.WebRTC && !d.WebRTC {
		return fault.New(fault.WebRTCDisabled, "WebRTC is switched off here. Ask for mode audio or chat.")
	}
	return nil
}

func newSession(teamID string, w wish, now time.Time) Session {
	s := w.session
	s.ID, s.TeamID, s.TokenID = idPrefix+uuid.Must(uuid.NewV7()).String(), teamID, uuid.NewString()
	s.IssuedAt = now.Truncate(time.Second)
	s.RedeemBy, s.ExpiresAt = s.IssuedAt.Add(w.ttl), s.IssuedAt.Add(w.life)
	return s
}

func (d *Service) answer(s Session, baseURL string) (TokenResponse, error) {
	token, err := d.Tokens.Sign(s)
	if err != nil {
		return TokenResponse{}, err
	}
	servers := []ICEServer{}
	if s.Mode == endpoint.WebRTC {
		servers = d.ICE.servers(s)
	}
	return TokenResponse{
		SessionID: s.ID, Token: token, TokenType: "call", Mode: s.Mode, EndpointID: s.EndpointID,
		RedeemBy: s.RedeemBy, ExpiresAt: s.ExpiresAt,
		WSURL:        "ws" + strings.TrimPrefix(baseURL, "http") + SocketPath,
		Subprotocols: []string{Subprotocol}, ICEServers: servers, Limits: d.Limits,
	}, nil
}

// Get returns a team's session. Another team's is not found.
func (d *Service) Get(ctx context.Context, teamID, id string) (View, error) {
	s, err := d.own(ctx, teamID, id)
	if err != nil {
		return View{}, err
	}
	state := s.State(d.Now(), false)
	if state == Disconnected {
		live, ended, err := d.Channels.Presence(ctx, []string{id})
		if err != nil {
			return View{}, fmt.Errorf("ask whether a browser is connected: %w", err)
		}
		if len(ended) > 0 { // by its runtime, with no browser there to hear of it
			if err := d.End(ctx, id); err != nil {
				return View{}, err
			}
			if s, err = d.own(ctx, teamID, id); err != nil {
				return View{}, err
			}
		}
		state = s.State(d.Now(), len(live) > 0)
	}
	return View{
		SessionID: s.ID, EndpointID: s.EndpointID, Mode: s.Mode, State: state,
		IssuedAt: s.IssuedAt, RedeemBy: s.RedeemBy, ExpiresAt: s.ExpiresAt, RedeemedAt: s.RedeemedAt, EndedAt: s.EndedAt,
	}, nil
}

// Delete revokes a team's session: committed first, then everybody is told. A
// session that has ended already stays as it ended. When telling fails the token
// is revoked all the same; asking again, or the sweeper, does the rest.
func (d *Service) Delete(ctx context.Context, teamID, id string) error {
	s, err := d.own(ctx, teamID, id)
	if err != nil {
		return err
	}
	first, err := d.Store.EndSession(ctx, s.ID, Revoked, d.Now())
	if err != nil {
		return fmt.Errorf("revoke session: %w", err)
	}
	if first {
		s.EndedAs = Revoked
	}
	return d.bury(ctx, s.EndedAs, s.ID)
}

// bury ends the channels of sessions that have ended. What fails is left unsettled
// in the database, for a sweeper to do again.
func (d *Service) bury(ctx context.Context, as State, ids ...string) error {
	var settled []string
	var failed error
	for _, id := range ids {
		if err := d.Channels.EndChannel(ctx, id, string(as)); err != nil {
			failed = fmt.Errorf("tell of the end of session %s: %w", id, err)
			continue
		}
		settled = append(settled, id)
	}
	return errors.Join(failed, d.Store.SettleSessions(ctx, settled))
}

func (d *Service) own(ctx context.Context, teamID, id string) (Session, error) {
	s, err := d.Store.Session(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && s.TeamID != teamID {
		return Session{}, fault.New(fault.NotFound, "There is no such session.")
	}
	if err != nil {
		return Session{}, fmt.Errorf("find session: %w", err)
	}
	return s, nil
}
