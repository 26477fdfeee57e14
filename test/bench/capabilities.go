package main

import (
	"fmt"
	"net/http"
)

// capabilities compares an authenticated, rate-limited GET with a handler that
// writes as many bytes.
func capabilities(at *site, s settings) {
	t := at.startTelapi()
	defer t.kill()
	peer := at.startPeer("bytes")
	defer peer.kill()
	const path = "/api/v1/runtime/capabilities"
	length := len(t.get(path))
	read := func(addr, path string) func() result {
		request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nAccept: */*\r\n\r\n", path, addr, t.key)
		return func() result {
			return load(connectAll(nil, s.connections, addr), http.StatusOK, during(s.span, s.connections, func() []byte { return request }))
		}
	}
	const leases = "telapi_ratelimit_grants_total" // requests to the store
	before := t.metric(leases)
	fmt.Printf("GET %s (%d bytes), %d connections\n", path, length, s.connections)
	c := interleave(s.rounds, read(t.addr, path), read(peer.line, fmt.Sprintf("/?%d", length)))
	sent := c.telapi.perSecond * s.span.Seconds() * float64(s.rounds)
	c.print("requests", "net/http", "(target: at least 0.50)")
	fmt.Printf("  store requests per 1,000 HTTP requests: %.2f\n", (t.metric(leases)-before)/sent*1000)
}
