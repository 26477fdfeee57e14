package socket

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gorilla/websocket"

	"telapi/internal/channel"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
)

// Options describe a socket.
type Options struct {
	Holder      string // of the shares of the budgets that it uses: a team or an address
	Session     string // empty for a call runtime
	Subprotocol string
	Limits      *channel.ConnectionLimits
}

// CheckBudget returns the error that Upgrade would return because of the budget.
func (s *Set) CheckBudget(holder string) error { return s.budget.Check(holder, 1) }

// Upgrade upgrades a request and starts its socket with the connection that open returns.
// It sends an error of open itself, and returns the others.
func (s *Set) Upgrade(x *httpserve.Response, r *http.Request, o Options, open func(context.Context) (Connection, error)) error {
	if !s.begin() {
		return ErrDraining()
	}
	defer s.running.Done()
	if err := s.budget.Take(o.Holder, 1); err != nil {
		return err
	}
	started := false
	defer func() {
		if !started {
			s.budget.Return(o.Holder, 1)
		}
	}()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	conn, err := hijack(x)
	if conn == nil {
		return err
	}
	socket := &socket{Options: o, netConn: conn.batchConn, set: s}
	if err == nil {
		socket.connection, err = open(ctx)
	}
	if err != nil {
		if s.ctx.Err() != nil { // Close has canceled open
			err = ErrDraining()
		}
		x.Fail(err)
		conn.finish()
		return nil
	}
	header := http.Header{httpserve.RequestIDHeader: {x.RequestID}}
	if slices.Contains(websocket.Subprotocols(r), o.Subprotocol) {
		// The upgrader would select it too, but would keep the client's whole list,
		// which contains the token, in memory while the socket is open.
		header.Set("Sec-Websocket-Protocol", o.Subprotocol)
	}
	x.Status = http.StatusSwitchingProtocols
	conn.beginBatch() // the first frame ends it: one write for response and frame
	socket.ws, err = upgrader.Upgrade(conn, r, header)
	if err == nil && o.Session == "" {
		err = conn.flushBatch() // a call runtime sends the first frame
	}
	if err != nil {
		socket.connection.Close()
		return fmt.Errorf("upgrade to WebSocket: %w", err)
	}
	started = s.start(socket)
	return nil
}

// ErrDraining returns the error of a handshake during a shutdown.
func ErrDraining() error {
	return fault.New(fault.ServiceUnavailable, "This instance is shutting down. Reconnect to reach another one.").WithRetryAfter(time.Second)
}

// CanUpgrade reports whether the request is a complete WebSocket handshake. HTTP/1.0
// does not have the status 101.
func CanUpgrade(r *http.Request) bool {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-WebSocket-Key"))
	return r.Method == http.MethodGet && r.ProtoAtLeast(1, 1) && websocket.IsWebSocketUpgrade(r) &&
		r.Header.Get("Sec-WebSocket-Version") == "13" && err == nil && len(key) == 16
}
