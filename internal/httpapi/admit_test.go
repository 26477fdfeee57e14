package httpapi

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}

func requestFrom(peer string, forwarded ...string) *http.Request {
	return &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": forwarded}}
}

func TestClientAddrTrustsOnlyTrustedProxies(t *testing.T) {
	for _, c := range []struct {
		name      string
		peer      string
		forwarded []string
		want      string
	}{
		{"no proxy", "192.0.2.1:5000", []string{"198.51.100.1"}, "192.0.2.1"},
		{"one proxy", "10.0.0.1:5000", []string{"198.51.100.1"}, "198.51.100.1"},
		{"no header", "10.0.0.1:5000", nil, "10.0.0.1"},
		{"forged address further left", "10.0.0.1:5000", []string{"203.0.113.9, 198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.0.0.1:5000", []string{"198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"two headers", "10.0.0.1:5000", []string{"203.0.113.9", "198.51.100.1"}, "198.51.100.1"},
		{"only proxies", "10.0.0.1:5000", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"invalid address next to the proxy", "10.0.0.1:5000", []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		{"port", "10.0.0.1:5000", []string{"198.51.100.1:1234"}, "198.51.100.1"},
		{"IPv6 in brackets", "[fd00::1]:5000", []string{"[2001:db8::1]:99"}, "2001:db8::1"},
		{"IPv4-mapped IPv6", "[::ffff:10.0.0.1]:5000", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"IPv6 zone", "10.0.0.1:5000", []string{"fe80::1%eth0"}, "fe80::1"},
	} {
		if got := clientAddr(requestFrom(c.peer, c.forwarded...), proxies); got.String() != c.want {
			t.Errorf("%s: client %s, want %s", c.name, got, c.want)
		}
	}
	// Only the last maxHops addresses are read, and all of them are proxies.
	long := strings.Repeat("10.0.0.2, ", 10_000) + "10.0.0.3"
	if got := clientAddr(requestFrom("10.0.0.1:1", long), proxies); got.String() != "10.0.0.2" {
		t.Errorf("long header: client %s, want 10.0.0.2", got)
	}
}

func FuzzClientAddr(f *testing.F) {
	f.Add("10.0.0.1:1", "198.51.100.1, 10.0.0.2")
	f.Fuzz(func(t *testing.T, peer, forwarded string) {
		got := clientAddr(requestFrom(peer, forwarded), proxies)
		if direct, ok := parseAddr(peer); ok && !contains(proxies, direct) && got != direct {
			t.Errorf("X-Forwarded-For %q of untrusted peer %q: client %s, want the peer", forwarded, peer, got)
		}
		if got.Zone() != "" || got.Is4In6() {
			t.Errorf("client %s has a zone or is an IPv4-mapped IPv6 address", got)
		}
	})
}
