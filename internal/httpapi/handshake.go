package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
	"telapi/internal/socket"
)

// tokenPrefix starts the subprotocol that carries the call token.
const tokenPrefix = "telapi.bearer."

// openSocket handles the handshake of /ws/session. Errors are returned before the
// upgrade, as ordinary responses. A GET without upgrade runs the same checks
// without redeeming the token, so that a page can find out why its socket was
// rejected.
func (s *Server) openSocket(x *exchange, r *http.Request) error {
	isHandshake := socket.CanUpgrade(r)
	if err := s.limitHandshakes(x, r, isHandshake); err != nil {
		allowOrigin(x, r.Header.Get("Origin"))
		return err
	}
	info, err := s.admitSocket(x, r)
	if err != nil {
		return err
	}
	resume, err := x.resumeParams()
	if err != nil {
		return err
	}
	if !isHandshake {
		if err := s.sockets.CheckBudget(info.TeamID); err != nil {
			return err
		}
		if err := s.deps.Channels.CheckOpen(r.Context(), info, resume.connectionID); err != nil {
			return err
		}
		return x.upgradeRequired("The token is valid. Open a WebSocket to use it.")
	}
	if err := x.checkNoBody(new(fault.Issues)); err != nil {
		return err
	}
	return s.upgrade(x, r, info, resume)
}

func (x *exchange) upgradeRequired(message string) error {
	x.Header().Set("Upgrade", "websocket")
	x.Header().Set("Sec-WebSocket-Version", "13")
	return fault.New(fault.UpgradeRequired, "%s", message)
}

// checkNoBody rejects a handshake with a body or another issue.
func (x *exchange) checkNoBody(issues *fault.Issues) error {
	issues.Check(x.Request.ContentLength == 0, "", fault.IssueValue, "A WebSocket handshake must not have a body.")
	err := issues.Err()
	if err != nil {
		x.Header().Set("Connection", "close") // do not read the body
	}
	return err
}

// resumption is the cursor from which a connection continues a session, and the
// connection that it replaces. Both may be empty.
type resumption struct{ streamID, connectionID string }

func (x *exchange) resumeParams() (resume resumption, err error) {
	params, err := x.query()
	if err != nil {
		return resume, err
	}
	var issues fault.Issues
	resume.streamID, _ = issues.QueryValue(params, "streamId")
	resume.connectionID, _ = issues.QueryValue(params, "connectionId")
	return resume, issues.Err()
}

// upgrade upgrades the request. It attaches the connection to its session once nothing but
// the loss of the connection can prevent that: a handshake that fails must not replace
// the session's open socket.
func (s *Server) upgrade(x *exchange, r *http.Request, info channel.SessionInfo, resume resumption) error {
	options := socket.Options{Holder: info.TeamID, Session: info.SessionID, Subprotocol: session.Subprotocol, Limits: s.deps.Channels.Limits()}
	return s.sockets.Upgrade(&x.Response, r, options, func(ctx context.Context) (socket.Connection, error) {
		opened, err := s.deps.Channels.Open(ctx, info, resume.connectionID, resume.streamID)
		if err != nil {
			return nil, err
		}
		if !info.Redeemed && s.deps.Draining() { // this first connection has replaced no other
			opened.Close()
			return nil, socket.ErrDraining()
		}
		return opened, nil
	})
}

// limitHandshakes counts handshakes against the limit of their session, and plain
// requests against the api tier, before the database is read.
func (s *Server) limitHandshakes(x *exchange, r *http.Request, isHandshake bool) error {
	if !isHandshake {
		if err := x.applyLimit(s.deps.Limits.Allow(r.Context(), ratelimit.API, x.client)); err != nil {
			return err
		}
	}
	id := s.callToken(x, r).SessionID()
	if id == "" {
		return nil // admitSocket rejects and counts it
	}
	perMinute := int64(s.deps.Channels.Limits().HandshakesPerMinute)
	if isHandshake {
		return x.applyLimit(s.deps.Limits.AllowHandshake(r.Context(), id, perMinute))
	}
	if decision, rejected := s.deps.Limits.HandshakeRejection(id, perMinute); rejected {
		return x.applyLimit(decision, nil)
	}
	return nil
}

// admitSocket checks token and origin. It counts every handshake against the auth
// tier: guessing leads to 429, valid tokens are not affected.
func (s *Server) admitSocket(x *exchange, r *http.Request) (info channel.SessionInfo, err error) {
	origin := r.Header.Get("Origin")
	issued, endpoint, failure := s.deps.Sessions.Verify(r.Context(), s.callToken(x, r))
	if failure == nil && !s.originAllowed(r, origin, endpoint.Origins) {
		failure = fault.New(fault.OriginNotAllowed, "The endpoint does not allow pages of the origin %.200q. Add it to the origins of the endpoint, or open the page from an allowed origin.", origin)
	} else {
		allowOrigin(x, origin)
	}
	decision, err := s.deps.Limits.Allow(r.Context(), ratelimit.Auth, x.client)
	if err != nil || failure != nil && !decision.Allowed {
		return info, x.applyLimit(decision, err)
	}
	x.principal = auth.Principal{TeamID: issued.TeamID, Subject: issued.ID}
	switch {
	case failure != nil:
		return info, failure
	case s.deps.Draining():
		return info, socket.ErrDraining()
	}
	profile, err := json.Marshal(endpoint.Profile)
	if err != nil {
		return info, fmt.Errorf("encode gateway profile: %w", err)
	}
	return channel.SessionInfo{
		Offer: wire.Offer{
			SessionID: issued.ID, TeamID: endpoint.TeamID, EndpointID: endpoint.ID, Mode: string(issued.Mode), // sockets share the endpoint's strings
			Identity: issued.Identity, Metadata: issued.Metadata, ICEServers: s.deps.Sessions.RuntimeICEServers(issued),
		},
		RejectDuplicate: issued.DuplicatePolicy == session.Reject, ExpiresAt: issued.ExpiresAt, Profile: profile, Redeemed: !issued.RedeemedAt.IsZero(),
	}, nil
}

// callToken returns the token of a handshake. It verifies the signature once.
func (s *Server) callToken(x *exchange, r *http.Request) session.CallToken {
	if x.token == nil {
		token := s.deps.Sessions.Parse(rawCallToken(r))
		x.token = &token
	}
	return *x.token
}

// rawCallToken returns the token from the subprotocol, the only header that a browser
// can set, or else from the Authorization header or the query.
func rawCallToken(r *http.Request) string {
	for _, p := range websocket.Subprotocols(r) {
		if token, ok := strings.CutPrefix(p, tokenPrefix); ok {
			return token
		}
	}
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	if tokens := r.URL.Query()["token"]; len(tokens) == 1 { // of several that differ, none may be tried
		return tokens[0]
	}
	return ""
}

// originAllowed checks a page's origin against the endpoint's list. Without a
// list, development allows all origins and production only the service's host.
// Clients that are not browsers send no origin.
func (s *Server) originAllowed(r *http.Request, origin string, allowed []string) bool {
	switch {
	case origin == "":
		return true
	case len(allowed) > 0:
		return slices.Contains(allowed, strings.ToLower(origin))
	case s.deps.AnyOrigin:
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && strings.EqualFold(u.Host, r.Host)
}

// allowOrigin lets the page read the response, which explains why a socket was
// rejected.
func allowOrigin(w http.ResponseWriter, origin string) {
	if origin == "" {
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
	h.Add("Vary", "Origin")
}

// preflightSocket answers CORS preflight requests for all origins. Only the
// request that follows carries the token and so can be checked.
func preflightSocket(x *exchange, r *http.Request) error {
	allowOrigin(x, r.Header.Get("Origin"))
	return x.respondPreflight("GET", "Authorization")
}
