package httpapi

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
)

// tokenPrefix starts the subprotocol that carries the call token.
const tokenPrefix = "telapi.bearer."

// openSocket handles the handshake of /ws/session. Errors are returned before the
// upgrade, as ordinary responses. A GET without upgrade runs the same checks
// without redeeming the token, so that a page can find out why its socket was
// rejected.
func (s *Server) openSocket(x *exchange, r *http.Request) error {
	info, err := s.admitSocket(x, r)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	if !canUpgrade(r) {
		if err := s.deps.Channels.CheckOpen(r.Context(), info, query.Get("connectionId")); err != nil {
			return err
		}
		if r.ProtoMajor == 1 { // HTTP/2 forbids the header
			x.Header().Set("Upgrade", "websocket")
		}
		x.Header().Set("Sec-WebSocket-Version", "13")
		return fault.New(fault.UpgradeRequired, "The token is valid. Open a WebSocket to use it.")
	}
	connection, err := s.deps.Channels.Open(r.Context(), info, query.Get("connectionId"), query.Get("streamId"))
	if err != nil {
		return err
	}
	socket, err := s.upgrade(x, r, connection)
	if err != nil {
		connection.Close()
		return err
	}
	s.sockets.start(socket)
	return nil
}

func (s *Server) upgrade(x *exchange, r *http.Request, connection *channel.Connection) (*socket, error) {
	if err := s.checkDraining(); err != nil { // a drain may have started since admitSocket
		return nil, err
	}
	header := http.Header{httpserve.RequestIDHeader: {x.RequestID}}
	if slices.Contains(websocket.Subprotocols(r), session.Subprotocol) {
		// The upgrader would select it too, but would keep the client's whole list,
		// which contains the token, in memory while the socket is open.
		header.Set("Sec-Websocket-Protocol", session.Subprotocol)
	}
	conn := &batchConn{}
	ws, err := upgrader.Upgrade(batchHijacker{x, conn}, r, header)
	if err != nil {
		return nil, fmt.Errorf("upgrade to WebSocket: %w", err)
	}
	return &socket{ws: ws, conn: conn, channel: connection, set: s.sockets, limits: s.deps.Channels.Limits()}, nil
}

func (s *Server) checkDraining() error {
	if s.deps.Draining() {
		return fault.New(fault.ServiceUnavailable, "This instance is shutting down. Reconnect to reach another one.").WithRetryAfter(time.Second)
	}
	return nil
}

// canUpgrade reports whether the upgrade will succeed. It is checked first,
// because the connection takes over the session before the upgrade.
func canUpgrade(r *http.Request) bool {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	return r.Method == http.MethodGet && websocket.IsWebSocketUpgrade(r) && r.Header.Get("Sec-WebSocket-Version") == "13" && err == nil && len(key) == 16
}

// admitSocket checks token and origin. It counts every handshake against the auth
// tier: guessing leads to 429, valid tokens are not affected.
func (s *Server) admitSocket(x *exchange, r *http.Request) (info channel.SessionInfo, err error) {
	origin := r.Header.Get("Origin")
	ses, ep, failure := s.deps.Sessions.Verify(r.Context(), callToken(r))
	if failure == nil && !s.originAllowed(r, origin, ep.Origins) {
		failure = fault.New(fault.OriginNotAllowed, "This endpoint does not allow sockets from pages of this origin.")
	} else {
		allowOrigin(x, origin)
	}
	decision, err := s.deps.Limits.Allow(r.Context(), ratelimit.Auth, x.client)
	if err != nil || failure != nil && !decision.Allowed {
		return info, x.applyLimit(decision, err)
	}
	x.principal = auth.Principal{TeamID: ses.TeamID, Subject: ses.ID}
	if failure != nil {
		return info, failure
	}
	profile, err := json.Marshal(ep.Profile)
	if err != nil {
		return info, fmt.Errorf("encode gateway profile: %w", err)
	}
	return channel.SessionInfo{
		Offer: wire.Offer{
			SessionID: ses.ID, TeamID: ses.TeamID, EndpointID: ses.EndpointID, Mode: string(ses.Mode),
			Identity: ses.Identity, Metadata: ses.Metadata,
		},
		Reject: ses.DuplicatePolicy == session.Reject, ExpiresAt: ses.ExpiresAt, Profile: profile,
	}, s.checkDraining()
}

// callToken returns the token from the subprotocol, the only header that a browser
// can set, or else from the Authorization header or the query.
func callToken(r *http.Request) string {
	for _, p := range websocket.Subprotocols(r) {
		if token, ok := strings.CutPrefix(p, tokenPrefix); ok {
			return token
		}
	}
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return r.URL.Query().Get("token")
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
func (s *Server) preflightSocket(x *exchange, r *http.Request) error {
	allowOrigin(x, r.Header.Get("Origin"))
	x.Header().Set("Access-Control-Allow-Methods", "GET")
	x.Header().Set("Access-Control-Allow-Headers", "Authorization")
	x.Header().Set("Access-Control-Max-Age", "600")
	x.WriteHeader(http.StatusNoContent)
	return nil
}
