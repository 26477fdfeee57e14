package main

import (
	"bytes"
	"fmt"
)

// capabilities measures an authenticated, rate-limited read against a bare
// handler that writes the same bytes.
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

	request := func(addr string) []byte {
		return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nX-API-Key: %s\r\nAccept: */*\r\n\r\n", path, addr, t.key)
	}
	const leases = "telapi_ratelimit_leases_total" // how often the store was asked for permits
	before, err := t.metric(leases)
	if err != nil {
		return err
	}
	fmt.Printf("GET %s (%d bytes), %d connections\n", path, len(body), s.connections)
	d, err := interleave(s.rounds,
		func() (result, error) { return load(t.addr, request(t.addr), s.connections, s.span) },
		func() (result, error) { return load(peer.line, request(peer.line), s.connections, s.span) })
	if err != nil {
		return err
	}
	after, err := t.metric(leases)
	if err != nil {
		return err
	}
	sent := d.ours.perSecond * s.span.Seconds() * float64(s.rounds)
	d.print("requests", "bare net/http", "requests", "(at least 0.50 wanted)")
	fmt.Printf("  store round trips per 1,000 requests: %.2f\n", (after-before)/sent*1000)
	return nil
}
