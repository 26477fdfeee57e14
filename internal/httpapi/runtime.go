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
)

// runtimeLimits are the limits of a runtime's socket. The connection checks those that
// depend on the request.
var runtimeLimits = &channel.Limits{QueuedBytes: runtimeapi.QueuedBytes, PingIntervalMs: runtimeapi.PingInterval.Milliseconds()}

// openRuntime handles the handshake of /ws/runtime. A credential in the header is checked
// before the upgrade. Without one, hello must have it.
func (s *Server) openRuntime(x *exchange, r *http.Request) error {
	_, hasKey := r.Header["X-Api-Key"]
	_, hasToken := r.Header["Authorization"]
	identified, holder := hasKey || hasToken, x.client.String()
	if identified {
		if err := s.admitRuntime(x, r); err != nil {
			return err
		}
		holder = x.principal.TeamID
	}
	var issues fault.Issues
	issues.Check(slices.Contains(websocket.Subprotocols(r), wire.RuntimeProtocol), "/header/Sec-WebSocket-Protocol", fault.IssueValue, "Must offer %s.", wire.RuntimeProtocol)
	issues.Check(r.ContentLength == 0, "", fault.IssueValue, "A WebSocket handshake must not have a body.")
	if err := issues.Err(); err != nil {
		x.Header().Set("Connection", "close") // do not read the body
		return err
	}
	if !canUpgrade(r) {
		x.Header().Set("Upgrade", "websocket")
		x.Header().Set("Sec-WebSocket-Version", "13")
		return fault.New(fault.UpgradeRequired, "Open a WebSocket to run calls.")
	}
	if s.deps.Draining() {
		return errDraining()
	}
	params := runtimeapi.Params{Identified: identified, BaseURL: s.baseURL(r), Authenticate: s.runtimeCredential(x, r)}
	return s.startSocket(x, r, &socket{team: holder, limits: runtimeLimits}, wire.RuntimeProtocol, func(context.Context) (connection, error) {
		c, err := s.deps.Runtimes.Open(params)
		if err != nil {
			return nil, err // not a connection that is nil
		}
		return c, nil
	})
}

// admitRuntime checks the credential in the header.
func (s *Server) admitRuntime(x *exchange, r *http.Request) error {
	caller, err := s.identify(x, r)
	if err != nil {
		return s.countAuthFailure(x, r, err)
	}
	if err := x.principal.Require(auth.RunCalls); err != nil {
		return err
	}
	return x.applyLimit(s.deps.Limits.AllowTeam(r.Context(), x.principal.TeamID, caller.Quota()))
}

// runtimeCredential returns a function that verifies a credential of the connection: that
// of the header, or one of hello.
func (s *Server) runtimeCredential(x *exchange, r *http.Request) func(context.Context, string) (auth.Principal, error) {
	header, client := http.Header{}, x.client
	for _, name := range []string{"X-Api-Key", "Authorization"} {
		if values, ok := r.Header[name]; ok {
			header[name] = values
		}
	}
	var known atomic.Bool // later calls find out whether the credential was revoked
	return func(ctx context.Context, key string) (auth.Principal, error) {
		header := header
		switch {
		case key == "":
		case strings.HasPrefix(key, "tk_"):
			header = http.Header{"X-Api-Key": {key}}
		default:
			header = http.Header{"Authorization": {"Bearer " + key}}
		}
		attempt := &exchange{client: client}
		request := (&http.Request{Header: header}).WithContext(ctx)
		_, err := s.identify(attempt, request)
		if key != "" && !known.Swap(true) && fault.Is(err, fault.Unauthorized) {
			if decision, _ := s.deps.Limits.Allow(ctx, ratelimit.Auth, client); !decision.Allowed {
				err = decision.Refusal()
			}
		}
		return attempt.principal, err
	}
}
