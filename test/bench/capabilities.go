package main

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
)

// capabilities compares an authenticated, rate-limited GET with a handler that
// writes the same bytes.
func capabilities(at *site, s settings) error {
	t, err := at.startTelapi()
	if err != nil {
		return err
	}
	defer t.stop()

	const path = "/api/v1/runtime/capabilities"
	body, err := t.get(path)
	if err != nil {
		return err
	}
	peer, err := startPeer("bytes", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer peer.stop()

	read := func(addr string) func() (result, error) {
		request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nAccept: */*\r\n\r\n", path, addr, t.key)
		return func() (result, error) {
			return load(to(addr), http.StatusOK, slices.Repeat([]source{repeat(request, s.span)}, s.connections))
		}
	}
	const leases = "telapi_ratelimit_leases_total" // requests to the store
	before, err := t.metric(leases)
	if err != nil {
		return err
	}
	fmt.Printf("GET %s (%d bytes), %d connections\n", path, len(body), s.connections)
	c, err := interleave(s.rounds, read(t.addr), read(peer.line))
	if err != nil {
		return err
	}
	after, err := t.metric(leases)
	if err != nil {
		return err
	}
	sent := c.telapi.perSecond * s.span.Seconds() * float64(s.rounds)
	c.print("requests", "net/http", "requests", "(target: at least 0.50)")
	fmt.Printf("  store requests per 1,000 HTTP requests: %.2f\n", (after-before)/sent*1000)
	return nil
}
