package httpapi

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/internal/endpoint"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
)

// tokenPrefix is of the subprotocol that carries the token.
const tokenPrefix = "telapi.bearer."

// upgrader makes sockets that are cheap while idle: small buffers, and a write
// buffer only while something is written.
var upgrader = websocket.Upgrader{
	ReadBufferSize:  1024,
	WriteBufferSize: 1024,
	WriteBufferPool: &sync.Pool{},
	CheckOrigin:     func(*http.Request) bool { return true }, // checked before, against the endpoint
}

// openSocket is the handshake of /ws/session. Everything that can be refused is
// refused before the upgrade, as an ordinary answer; a plain GET goes the same
// way, redeems nothing, and so tells a page why its socket was refused.
func (s *Server) openSocket(x *exchange, r *http.Request) error {
	ses, ep, err := s.admitSocket(x, r)
	if err != nil {
		return err
	}
	info, err := channelInfo(ses, ep)
	if err != nil {
		return err
	}
	if err := s.staying(); err != nil {
		return err
	}
	query := r.URL.Query()
	if !canUpgrade(r) {
		if err := s.deps.Channels.CheckOpen(r.Context(), info, query.Get("connectionId")); err != nil {
			return err
		}
		x.Header().Set("Upgrade", "websocket")
		x.Header().Set("Sec-WebSocket-Version", "13")
		return fault.New(fault.UpgradeRequired, "The token is good. Open a WebSocket to use it.")
	}
	conn, err := s.deps.Channels.Open(r.Context(), info, query.Get("connectionId"), query.Get("streamId"))
	if err != nil {
		return err
	}
	if err := s.staying(); err != nil { // once more: a socket that opens after the drain is cut off without a word
		conn.Close()
		return err
	}
	line := &line{}
	header := http.Header{httpserve.RequestIDHeader: x.Header().Values(httpserve.RequestIDHeader)}
	if slices.Contains(websocket.Subprotocols(r), session.Subprotocol) {
		// The upgrader would choose it too, but keep the client's whole list, which
		// holds the token, for as long as the socket is open.
		header.Set("Sec-Websocket-Protocol", session.Subprotocol)
	}
	ws, err := upgrader.Upgrade(lineTaker{x, line}, r, header)
	if err != nil {
		conn.Close()
		return fmt.Errorf("upgrade: %w", err)
	}
	p := &pump{conn: ws, line: line, channel: conn, sockets: s.sockets, limits: s.deps.Channels.Limits()}
	s.sockets.add(p)
	go p.run() // so that net/http can let go of its buffers
	return nil
}

// staying refuses what would outlast an instance that drains.
func (s *Server) staying() error {
	if s.deps.Draining() {
		return fault.New(fault.ServiceUnavailable, "This instance restarts. Connect again to reach another one.").WithRetryAfter(time.Second)
	}
	return nil
}

// canUpgrade tells whether the upgrade will work: by then the new socket has
// taken the session from the one before.
func canUpgrade(r *http.Request) bool {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	return r.Method == http.MethodGet && websocket.IsWebSocketUpgrade(r) && r.Header.Get("Sec-WebSocket-Version") == "13" && err == nil && len(key) == 16
}

// admitSocket checks token and origin, and counts the handshake against the
// auth tier: guessing ends in 429, good tokens go on.
func (s *Server) admitSocket(x *exchange, r *http.Request) (session.Session, endpoint.Endpoint, error) {
	origin := r.Header.Get("Origin")
	ses, ep, refusal := s.deps.Sessions.Verify(r.Context(), presentedToken(r))
	if refusal == nil && !s.originAllowed(r, origin, ep.Origins) {
		refusal = fault.New(fault.OriginNotAllowed, "This endpoint does not allow pages of this origin to open its sockets.")
	} else {
		allowOrigin(x, origin)
	}
	d, err := s.deps.Limits.Allow(r.Context(), ratelimit.Auth, x.client)
	switch {
	case err != nil:
		return ses, ep, err
	case refusal != nil && !d.Allowed:
		return ses, ep, applyLimit(x, d)
	}
	x.principal = auth.Principal{TeamID: ses.TeamID, Subject: ses.ID}
	return ses, ep, refusal
}

// presentedToken takes the token from the subprotocol, which is all a browser
// can set, the Authorization header, or the query.
func presentedToken(r *http.Request) string {
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

// originAllowed holds a page's origin against the endpoint's list. Without a
// list, any is good in development and the service's own host otherwise. What
// sends no Origin is no browser.
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

// allowOrigin lets the page read the answer, so that it can tell a person why a
// socket was refused.
func allowOrigin(w http.ResponseWriter, origin string) {
	if origin == "" {
		return
	}
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "X-Request-Id, Retry-After")
	h.Add("Vary", "Origin")
}

// preflightSocket answers a page that asks whether it may ask: the question
// itself, which carries the token, is held against the endpoint's list.
func (s *Server) preflightSocket(x *exchange, r *http.Request) error {
	allowOrigin(x, r.Header.Get("Origin"))
	x.Header().Set("Access-Control-Allow-Methods", "GET")
	x.Header().Set("Access-Control-Allow-Headers", "Authorization")
	x.Header().Set("Access-Control-Max-Age", "600")
	x.WriteHeader(http.StatusNoContent)
	return nil
}

func channelInfo(ses session.Session, ep endpoint.Endpoint) (channel.SessionInfo, error) {
	profile, err := json.Marshal(ep.Profile)
	if err != nil {
		return channel.SessionInfo{}, err
	}
	offer := wire.Offer{
		SessionID: ses.ID, TeamID: ses.TeamID, EndpointID: ses.EndpointID, Mode: string(ses.Mode), Metadata: ses.Metadata,
	}
	if ses.Identity != nil {
		offer.Identity = &wire.Identifier{ID: ses.Identity.ID, Name: ses.Identity.Name}
	}
	return channel.SessionInfo{
		ID: ses.ID, TeamID: ses.TeamID, EndpointID: ses.EndpointID, Mode: string(ses.Mode),
		Reject: ses.DuplicatePolicy == session.Reject, ExpiresAt: ses.ExpiresAt, Profile: profile,
		Offer: offer,
	}, nil
}
