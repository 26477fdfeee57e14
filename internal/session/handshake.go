package session

import (
	"context"
	"errors"
	"fmt"

	"telapi/internal/endpoint"
	"telapi/internal/fault"
)

// Verify tells whether a socket may be opened with a token, and changes nothing.
// It fails with fault.Unauthorized for what is no token of ours,
// fault.SessionEnded for one whose session has ended or is over its time, and
// fault.WebRTCDisabled for a mode that is switched off. An endpoint that was
// disabled since keeps its sessions.
func (d *Service) Verify(ctx context.Context, token string) (Session, endpoint.Endpoint, error) {
	s, err := d.holder(ctx, token)
	if err != nil {
		return Session{}, endpoint.Endpoint{}, err
	}
	e, err := d.Endpoints.Get(ctx, s.TeamID, s.EndpointID)
	if err != nil {
		return Session{}, endpoint.Endpoint{}, fmt.Errorf("find the session's endpoint: %w", err)
	}
	return s, e, nil
}

// holder is the session of a token, if it goes on.
func (d *Service) holder(ctx context.Context, token string) (Session, error) {
	claimed, err := d.Tokens.verify(token)
	if err != nil {
		return Session{}, err
	}
	s, err := d.Store.Session(ctx, claimed.ID)
	switch {
	case fault.Is(err, fault.NotFound):
		return Session{}, over(err)
	case err != nil:
		return Session{}, fmt.Errorf("find session: %w", err)
	case s.TokenID != claimed.TokenID || s.TeamID != claimed.TeamID || s.EndpointID != claimed.EndpointID || s.Mode != claimed.Mode:
		return Session{}, badToken(errors.New("it is not the token of its session"))
	case !d.Now().Before(claimed.ExpiresAt):
		return Session{}, over(errors.New("the token's own time is over"))
	}
	if state := s.State(d.Now(), false); state != Issued && state != Disconnected {
		return Session{}, over(errors.New("it is " + string(state)))
	}
	return s, d.offered(s.Mode)
}

// Redeem lets a browser in that Check has admitted: the first time it must come
// before RedeemBy, later any time before ExpiresAt. It has a channel by then, of
// which who ended the session since may not have known: that ends too.
func (d *Service) Redeem(ctx context.Context, id string) error {
	err := d.Store.RedeemSession(ctx, id, d.Now())
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	s, err := d.Store.Session(ctx, id)
	if err == nil && !s.EndedAt.IsZero() {
		err = d.bury(ctx, s.EndedAs, id)
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("tell of a session's end: %w", err)
	}
	return over(errors.New("it has ended or is over its time since"))
}

// End notes that the call runtime has ended a session's channel. Whoever comes
// first decides how a session ended, so this may be called for any channel that
// is seen to be over.
func (d *Service) End(ctx context.Context, id string) error {
	first, err := d.Store.EndSession(ctx, id, Ended, d.Now())
	if err == nil && first {
		err = d.Store.SettleSessions(ctx, []string{id}) // the channel is where the news came from
	}
	if err != nil {
		return fmt.Errorf("end session: %w", err)
	}
	return nil
}

func over(cause error) error {
	return fault.New(fault.SessionEnded, "The session has ended or is over its time. Ask for a new token.").WithCause(cause)
}
