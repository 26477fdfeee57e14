package httpapi

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/netip"

	"telapi/internal/auth"
	"telapi/internal/fault"
)

// exchange is one request and its answer on their way through the table. It is
// the ResponseWriter that handlers get, and gathers what the access log, the
// metrics and the trace will say.
type exchange struct {
	http.ResponseWriter
	id      string
	status  int
	bytes   int64
	whole   context.Context // the request's with its id and trace, but without the bound on a handler's work
	route   *Route          // nil: nothing matched
	client  netip.Addr
	who     auth.Principal
	refusal *fault.Error // why it was refused, for the log
}

func (x *exchange) WriteHeader(status int) {
	if x.status == 0 && status >= http.StatusOK { // 1xx are only on the way
		x.status = status
	}
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(b []byte) (int, error) {
	if x.status == 0 {
		x.status = http.StatusOK
	}
	n, err := x.ResponseWriter.Write(b)
	x.bytes += int64(n)
	return n, err
}

// Hijack hands the connection to a WebSocket; the answer then is its upgrade.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	x.status = http.StatusSwitchingProtocols
	return http.NewResponseController(x.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

func (x *exchange) pattern() string {
	if x.route == nil {
		return "unmatched"
	}
	return x.route.Path
}
