package httpapi

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// maxHops bounds how many X-Forwarded-For entries are read.
const maxHops = 32

// clientAddr returns the address of the client for rate limits. It reads
// X-Forwarded-For from the right and stops at the first address that is not a
// trusted proxy: a client can send any addresses further left.
func clientAddr(r *http.Request, trusted []netip.Prefix) netip.Addr {
	peer, ok := parseAddr(r.RemoteAddr)
	if !ok || !contains(trusted, peer) {
		return peer
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0 && len(hops)-i <= maxHops; i-- {
		hop, ok := parseAddr(strings.TrimSpace(hops[i]))
		if !ok {
			return peer
		}
		peer = hop
		if !contains(trusted, hop) {
			return peer
		}
	}
	return peer
}

// parseAddr parses an address with or without a port.
func parseAddr(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return a.Unmap().WithZone(""), err == nil
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
