package httpapi

import (
	"context"
	"net/http"
	"time"

	"telapi/internal/fault"
)

// feed streams the timeline of a session as lines of JSON until the session ends.
func (s *Server) feed(x *exchange, r *http.Request) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	id := query.Get("sessionId")
	if _, err := s.deps.Sessions.Get(r.Context(), x.principal.TeamID, id); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(x.ctx)
	defer stop()
	defer context.AfterFunc(s.streams, stop)()
	batches, err := s.deps.Playground.Feed(ctx, id, func(ctx context.Context) bool {
		session, err := s.deps.Sessions.Get(ctx, x.principal.TeamID, id)
		return err == nil && !session.EndedAt.IsZero()
	})
	if err != nil {
		return fault.Unavailable("The key-value store", err)
	}

	h := x.Header()
	h.Set("Content-Type", "application/x-ndjson")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	x.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	control := http.NewResponseController(x)
	_ = control.SetReadDeadline(time.Time{}) // the request is complete; only a disconnect can follow
	for batch := range batches {
		_ = control.SetWriteDeadline(time.Now().Add(socketWriteTimeout))
		if _, err := x.Write(batch); err != nil {
			break
		}
		if control.Flush() != nil {
			break
		}
	}
	return nil
}
