package httpapi

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}

func from(peer string, forwarded ...string) *http.Request {
	return &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": forwarded}}
}

func TestClientIsTheLastAddressThatATrustedProxyVouchesFor(t *testing.T) {
	for _, c := range []struct {
		name      string
		peer      string
		forwarded []string
		want      string
	}{
		{"no proxy", "192.0.2.1:5000", []string{"198.51.100.1"}, "192.0.2.1"},
		{"one proxy", "10.0.0.1:5000", []string{"198.51.100.1"}, "198.51.100.1"},
		{"no header", "10.0.0.1:5000", nil, "10.0.0.1"},
		{"what the client made up stands further left", "10.0.0.1:5000", []string{"203.0.113.9, 198.51.100.1"}, "198.51.100.1"},
		{"two proxies", "10.0.0.1:5000", []string{"198.51.100.1, 10.0.0.2"}, "198.51.100.1"},
		{"two headers", "10.0.0.1:5000", []string{"203.0.113.9", "198.51.100.1"}, "198.51.100.1"},
		{"only proxies", "10.0.0.1:5000", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"garbage next to the proxy", "10.0.0.1:5000", []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		{"a port", "10.0.0.1:5000", []string{"198.51.100.1:1234"}, "198.51.100.1"},
		{"IPv6 in brackets", "[fd00::1]:5000", []string{"[2001:db8::1]:99"}, "2001:db8::1"},
		{"mapped IPv4", "[::ffff:10.0.0.1]:5000", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		{"a zone", "10.0.0.1:5000", []string{"fe80::1%eth0"}, "fe80::1"},
	} {
		if got := clientAddr(from(c.peer, c.forwarded...), proxies); got.String() != c.want {
			t.Errorf("%s: counted as %s, want %s", c.name, got, c.want)
		}
	}
	endless := strings.Repeat("10.0.0.2, ", 10_000) + "10.0.0.3"
	if got := clientAddr(from("10.0.0.1:1", endless), proxies); got.String() != "10.0.0.2" {
		t.Errorf("an endless header: %s", got)
	}
}

func FuzzClientAddr(f *testing.F) {
	f.Add("10.0.0.1:1", "198.51.100.1, 10.0.0.2")
	f.Fuzz(func(t *testing.T, peer, forwarded string) {
		got := clientAddr(from(peer, forwarded), proxies)
		if direct, ok := parseAddr(peer); ok && !contains(proxies, direct) && got != direct {
			t.Errorf("%q was believed from %q: %s", forwarded, peer, got)
		}
		if got.Zone() != "" || got.Is4In6() {
			t.Errorf("%s is not in normal form", got)
		}
	})
}
