package app

import (
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"

	"telapi/internal/fault"
	"telapi/internal/httpapi"
)

// errNoInstance is the error of requests while no instance is running.
var errNoInstance = errors.New("no instance is running")

// Forward implements httpapi.Instances.
func (s *instances) Forward(w http.ResponseWriter, r *http.Request, sessionID string, fail func(error)) {
	last := &s.lastRequest
	if sessionID != "" { // a handshake
		last = &s.lastHandshake
	}
	s.proxy(w, r, fail, func(r *http.Request) (*http.Response, error) {
		target, resp, err := s.sendToNext(r, last)
		if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.sessions[sessionID] = target
		}
		return resp, err
	})
}

// ForwardToSession implements httpapi.Instances.
func (s *instances) ForwardToSession(w http.ResponseWriter, r *http.Request, sessionID string, fail func(error)) {
	s.mu.Lock()
	target := s.sessions[sessionID]
	s.mu.Unlock()
	if target == nil {
		fail(fault.New(fault.NotFound, "No instance has an open socket of the session."))
		return
	}
	s.proxy(w, r, fail, func(r *http.Request) (*http.Response, error) { return s.send(r, target) })
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// proxy sends a request with transport and passes on everything that follows an upgrade to a WebSocket.
func (s *instances) proxy(w http.ResponseWriter, r *http.Request, fail func(error), transport roundTripper) {
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.Host = "http", p.In.Host
			for _, name := range httpapi.ForwardedHeaders {
				p.Out.Header[name] = p.In.Header[name]
			}
		},
		Transport:    transport,
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { fail(fault.Unavailable("The instance", err)) },
		ErrorLog:     log.New(io.Discard, "", 0), // it would be full of connections that end early: the user kills instances
	}
	proxy.ServeHTTP(w, r)
}

// sendToNext sends a request to the next running instance that accepts a connection.
// A request that an instance may have received is not repeated.
func (s *instances) sendToNext(r *http.Request, last *int) (target *instance, resp *http.Response, err error) {
	err = errNoInstance
	for range s.all {
		if target = s.next(last); target == nil {
			return nil, nil, err
		}
		resp, err = s.send(r, target)
		if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" {
			break
		}
	}
	return target, resp, err
}

// next returns the next running instance after last, and updates last. It returns nil if
// none is running.
func (s *instances) next(last *int) *instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.all {
		*last = (*last + 1) % len(s.all)
		if i := s.all[*last]; i.isRunning() {
			return i
		}
	}
	return nil
}

func (s *instances) send(r *http.Request, target *instance) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL.Host = target.host
	if r.Body != nil {
		out.Body = io.NopCloser(r.Body) // so that it can be sent to another instance
	}
	return s.transport.RoundTrip(out)
}
