package httpapi

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/internal/auth"
	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/ratelimit"
	"telapi/internal/runtimeapi"
	"telapi/internal/socket"
)

// runtimeLimits are the limits of a runtime's socket. The connection checks those that
// depend on the request.
var runtimeLimits = &channel.ConnectionLimits{QueuedBytes: runtimeapi.QueuedBytes, PingIntervalMs: runtimeapi.PingInterval.Milliseconds()}

// openRuntime handles the handshake of /ws/runtime. A credential in the header is checked
// before the upgrade. Without one, hello must have it.
func (s *Server) openRuntime(x *exchange, r *http.Request) error {
	identified := len(r.Header["X-Api-Key"])+len(r.Header["Authorization"]) > 0
	isHandshake := socket.CanUpgrade(r)
	if err := s.admitRuntime(x, r, identified, isHandshake); err != nil {
		return err
	}
	if !isHandshake {
		return x.upgradeRequired("Open a WebSocket to run calls.")
	}
	var issues fault.Issues
	issues.Check(slices.Contains(websocket.Subprotocols(r), wire.RuntimeProtocol), "/header/Sec-WebSocket-Protocol", fault.IssueValue, "Must offer %s.", wire.RuntimeProtocol)
	if err := x.checkNoBody(&issues); err != nil {
		return err
	}
	if s.deps.Draining() {
		return socket.ErrDraining()
	}
	params := runtimeapi.Params{Identified: identified, BaseURL: s.baseURL(r), Authenticate: s.credentialCheck(x, r)}
	options := socket.Options{Holder: x.principal.TeamID, Subprotocol: wire.RuntimeProtocol, Limits: runtimeLimits}
	if !identified {
		options.Holder = x.client.String()
	}
	return s.sockets.Upgrade(&x.Response, r, options, func(context.Context) (socket.Connection, error) {
		c, err := s.deps.Runtimes.Open(params)
		if err != nil {
			return nil, err // c would not be nil in the interface
		}
		return c, nil
	})
}

// admitRuntime checks the credential in the header. It counts handshakes like those of
// browsers: a fleet of runtimes with valid credentials can reconnect at any time.
func (s *Server) admitRuntime(x *exchange, r *http.Request, identified, isHandshake bool) (failure error) {
	if !isHandshake {
		if err := x.applyLimit(s.deps.Limits.Allow(r.Context(), ratelimit.API, x.client)); err != nil {
			return err
		}
	}
	if identified {
		if x.principal, _, failure = s.identify(r.Context(), r.Header); failure == nil {
			failure = x.principal.Require(auth.RunCalls)
		}
	}
	decision, err := s.deps.Limits.Allow(r.Context(), ratelimit.Auth, x.client)
	if err != nil || (failure != nil || !identified) && !decision.Allowed {
		return x.applyLimit(decision, err)
	}
	return failure
}

const inHeader = "" // stands for the credential in the header of the request

// credentialCheck returns a function that verifies a credential of a connection: a key or
// console JWT, or inHeader.
func (s *Server) credentialCheck(x *exchange, r *http.Request) func(context.Context, string) (auth.Principal, error) {
	// Copies, so that the connection does not keep x and r in memory.
	sent := http.Header{"X-Api-Key": r.Header["X-Api-Key"], "Authorization": r.Header["Authorization"]}
	client := x.client
	var counted atomic.Bool // only the first credential can be a guess: later calls detect a revocation
	return func(ctx context.Context, credential string) (auth.Principal, error) {
		header := sent
		if strings.HasPrefix(credential, "tk_") {
			header = http.Header{"X-Api-Key": {credential}}
		} else if credential != inHeader {
			header = http.Header{"Authorization": {"Bearer " + credential}}
		}
		principal, _, err := s.identify(ctx, header)
		if credential != inHeader && !counted.Swap(true) && fault.Is(err, fault.Unauthorized) {
			if decision, _ := s.deps.Limits.Allow(ctx, ratelimit.Auth, client); !decision.Allowed {
				err = decision.Rejection()
			}
		}
		return principal, err
	}
}
