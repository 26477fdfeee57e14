package session

import (
	"context"
	"errors"
	"fmt"

	"telapi/internal/endpoint"
	"telapi/internal/fault"
)

// Verify returns the session and endpoint of a call token without changing
// anything. It fails with fault.Unauthorized if the token is invalid, with
// fault.SessionEnded if its session has ended or expired, and with
// fault.WebRTCDisabled if its mode is disabled. Sessions of an endpoint that was
// disabled later stay valid.
func (s *Service) Verify(ctx context.Context, token string) (Session, endpoint.Endpoint, error) {
	session, err := s.verify(ctx, token)
	if err != nil {
		return Session{}, endpoint.Endpoint{}, err
	}
	e, err := s.Endpoints.Get(ctx, session.TeamID, session.EndpointID)
	if err != nil {
		return Session{}, endpoint.Endpoint{}, fmt.Errorf("get endpoint of session: %w", err)
	}
	return session, e, nil
}

func (s *Service) verify(ctx context.Context, token string) (Session, error) {
	claimed, err := s.Tokens.verify(token)
	if err != nil {
		return Session{}, err
	}
	session, err := s.Store.Session(ctx, claimed.ID)
	switch {
	case fault.Is(err, fault.NotFound):
		return Session{}, errEnded(err)
	case err != nil:
		return Session{}, fmt.Errorf("get session: %w", err)
	case session.TokenID != claimed.TokenID || session.TeamID != claimed.TeamID || session.EndpointID != claimed.EndpointID || session.Mode != claimed.Mode:
		return Session{}, errToken(errors.New("claims differ from the session"))
	case !s.Now().Before(claimed.ExpiresAt):
		return Session{}, errEnded(errors.New("token expired"))
	}
	if state := session.State(s.Now(), false); state != Issued && state != Disconnected {
		return Session{}, errEnded(errors.New("session is " + string(state)))
	}
	return session, s.checkMode(session.Mode)
}

// Redeem records a connection of the browser after Verify: the first one before
// RedeemBy, later ones before ExpiresAt. The session's channel is open by then.
// If the session has ended meanwhile, Redeem ends the channel and fails with
// fault.SessionEnded.
func (s *Service) Redeem(ctx context.Context, id string) error {
	err := s.Store.RedeemSession(ctx, id, s.Now())
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	session, err := s.Store.Session(ctx, id)
	if err == nil && !session.EndedAt.IsZero() {
		err = s.endChannels(ctx, session.EndedAs, id)
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("redeem session: %w", err)
	}
	return errEnded(errors.New("ended or expired since the token was verified"))
}

// End records that the call runtime has ended the channel of a session. It may be
// called for any channel that has ended: the first final state of a session
// stays.
func (s *Service) End(ctx context.Context, id string) error {
	first, err := s.Store.EndSession(ctx, id, Ended, s.Now())
	if err == nil && first {
		err = s.Store.SettleSessions(ctx, []string{id}) // the channel has ended already
	}
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return nil
}

func errEnded(cause error) error {
	return fault.New(fault.SessionEnded, "The session has ended or expired. Request a new token.").WithCause(cause)
}
