package httpapi

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/session"
)

// Instances are the API servers that telapi dev --instances runs behind this one.
type Instances interface {
	// Forward sends a request to a running instance. If it is the handshake of a
	// WebSocket, sessionID is the session, which the instance serves from then on.
	// It calls fail instead of sending a response if no instance answers.
	Forward(w http.ResponseWriter, r *http.Request, sessionID string, fail func(error))
	// ForwardToSession sends a request to the instance that serves the session.
	ForwardToSession(w http.ResponseWriter, r *http.Request, sessionID string, fail func(error))
	// List returns all instances. One of them may serve the session.
	List(sessionID string) []Instance
	// Metrics returns the metrics of all running instances, one after the other.
	Metrics(ctx context.Context) []byte
	// Kill ends the process of an instance without a shutdown.
	Kill(number int) error
	// Start starts the process of an instance and waits until it is ready.
	Start(ctx context.Context, number int) error
}

// Instance is one of the Instances.
type Instance struct {
	Number  int    `json:"number"` // from 1
	State   string `json:"state"`  // running, starting or stopped
	PID     int    `json:"pid,omitzero"`
	Serving bool   `json:"serving"` // the session's newest socket
}

// forwards reports whether a request is for the instances. The playground and the
// probes are not: they work while all instances are stopped.
func (s *Server) forwards(r *http.Request) bool {
	return s.deps.Instances != nil && (r.URL.Path == session.SocketPath || strings.HasPrefix(r.URL.Path, "/api/"))
}

func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	id := ""
	if r.URL.Path == session.SocketPath {
		id = s.deps.Sessions.Parse(rawCallToken(r)).SessionID() // the instance rejects an invalid token
	}
	s.deps.Instances.Forward(w, s.withForwardedHeaders(r), id, func(err error) {
		x := httpserve.Response{ResponseWriter: w, Request: r, RequestID: httpserve.NewRequestID(r.Header)}
		x.Fail(err)
	})
}

// ForwardedHeaders describe the client of a forwarded request. Instances trust them.
var ForwardedHeaders = []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// withForwardedHeaders sets ForwardedHeaders to what this server trusts, so that a client
// cannot choose the address for which the instance limits it.
func (s *Server) withForwardedHeaders(r *http.Request) *http.Request {
	scheme, host, _ := strings.Cut(s.baseURL(r), "://")
	r.Header.Set("X-Forwarded-For", clientAddr(r, s.deps.TrustedProxies).String())
	r.Header.Set("X-Forwarded-Host", host)
	r.Header.Set("X-Forwarded-Proto", scheme)
	return r
}

func (s *Server) listInstances(x *exchange, _ *http.Request) error {
	var issues fault.Issues
	id, given := issues.QueryValue(x.params, "sessionId")
	issues.Check(!given || session.ValidID(id), "/query/sessionId", fault.IssueValue, "Must be the ID of a session.")
	return x.respond(http.StatusOK, map[string][]Instance{"instances": s.deps.Instances.List(id)}, issues.Err())
}

// instanceMetrics sends the metrics of all instances for the page, which adds them up.
// A scraper has to read each instance on its own.
func (s *Server) instanceMetrics(x *exchange, r *http.Request) error {
	x.WriteBytes(http.StatusOK, "text/plain; charset=utf-8", s.deps.Instances.Metrics(r.Context()))
	return nil
}

// changeInstance kills or starts an instance.
func changeInstance(change func(ctx context.Context, number int) error) handler {
	return func(x *exchange, r *http.Request) error {
		number, err := strconv.Atoi(r.PathValue("number"))
		if err != nil {
			return fault.New(fault.NotFound, "Instance not found.")
		}
		return x.noContent(change(r.Context(), number))
	}
}
