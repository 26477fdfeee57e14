package httpapi

import (
	"net/http"
	"net/netip"
	"strings"
)

// maxHops bounds how many X-Forwarded-For entries are looked at.
const maxHops = 32

// clientAddr is the address a request is counted under. X-Forwarded-For is
// read from the right, and only as far as trusted proxies vouch for it:
// everything further left was written by the client and could be anything.
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

// parseAddr takes an address with or without a port.
func parseAddr(s string) (netip.Addr, bool) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return ap.Addr().Unmap().WithZone(""), true
	}
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	return a.Unmap().WithZone(""), err == nil
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
