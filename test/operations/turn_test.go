package operations

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// startCoturn runs coturn with deploy/coturn/turnserver.conf and the given secrets. It
// returns settings that use it, with TURN over UDP, TCP and TLS.
func startCoturn(t *testing.T, secrets ...string) harness.Env {
	t.Helper()
	raw, err := os.ReadFile("../../deploy/coturn/turnserver.conf")
	testkit.Must(t, err)
	dir := t.TempDir()
	caFile, certFile, keyFile := testkit.NewCA(t).Files(t, dir, "127.0.0.1")
	port, tlsPort := testkit.FreePort(t), testkit.FreePort(t)
	config := strings.NewReplacer(
		"static-auth-secret=CHANGE-ME", "static-auth-secret="+strings.Join(secrets, "\nstatic-auth-secret="),
		"listening-port=3478", fmt.Sprintf("listening-port=%d", port), "listening-port=5349", fmt.Sprintf("listening-port=%d", tlsPort),
		"/etc/coturn/turn.pem", certFile, "/etc/coturn/turn.key", keyFile,
	).Replace(string(raw))
	file := filepath.Join(dir, "turnserver.conf")
	testkit.Must(t, os.WriteFile(file, []byte(config), 0o600))
	testkit.StartCoturn(t, file, port)
	return harness.Env{
		"WEBRTC_ICE_SERVERS": fmt.Sprintf("stun:127.0.0.1:%d,turn:127.0.0.1:%[1]d,turn:127.0.0.1:%[1]d?transport=tcp,turns:127.0.0.1:%d?transport=tcp", port, tlsPort),
		"TURN_SHARED_SECRET": secrets[0], "SSL_CERT_FILE": caFile,
	}
}

func TestDoctorProbesTURN(t *testing.T) {
	t.Parallel()
	const oldSecret, newSecret = "old-secret-of-coturn", "new-secret-of-coturn"
	env := startCoturn(t, oldSecret, newSecret)
	for _, secret := range []string{oldSecret, newSecret} { // both, while the secret is changed
		text, healthy := runDoctor(t, harness.Merge(env, harness.Env{"TURN_SHARED_SECRET": secret}))
		if !healthy || strings.Count(text, "available; it relays through 127.0.0.1:") != 3 || strings.Count(text, "available; it sees this machine as 127.0.0.1:") != 1 {
			t.Errorf("%s: healthy %v, want one STUN and three TURN servers in\n%s", secret, healthy, text)
		}
	}
	text, healthy := runDoctor(t, harness.Merge(env, harness.Env{"TURN_SHARED_SECRET": "swordfish"}))
	if healthy || strings.Count(text, "static-auth-secret") != 3 || strings.Contains(text, "swordfish") {
		t.Errorf("wrong secret: healthy %v, want three problems and no secret in\n%s", healthy, text)
	}
	text, healthy = runDoctor(t, harness.Env{"WEBRTC_ICE_SERVERS": "turn:127.0.0.1:1?transport=tcp", "TURN_SHARED_SECRET": oldSecret})
	if healthy || !strings.Contains(text, "turn:127.0.0.1:1?transport=tcp: unreachable") {
		t.Errorf("no server: healthy %v, want it unreachable in\n%s", healthy, text)
	}
	text, healthy = runDoctor(t, harness.Merge(env, harness.Env{"SSL_CERT_FILE": ""}))
	if healthy || !strings.Contains(text, "certificate") {
		t.Errorf("unknown CA: healthy %v, want the certificate in\n%s", healthy, text)
	}
}

func TestRelayReachesPublicAddressesOnly(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../deploy/coturn/turnserver.conf")
	testkit.Must(t, err)
	type addresses struct{ first, last netip.Addr }
	var denied []addresses
	for line := range strings.Lines(string(raw)) {
		if list, ok := strings.CutPrefix(strings.TrimSpace(line), "denied-peer-ip="); ok {
			first, last, _ := strings.Cut(list, "-")
			denied = append(denied, addresses{netip.MustParseAddr(first), netip.MustParseAddr(last)})
		}
	}
	isDenied := func(a netip.Addr) bool {
		return slices.ContainsFunc(denied, func(r addresses) bool { return r.first.Compare(a) <= 0 && a.Compare(r.last) <= 0 })
	}
	// The registries of special-purpose addresses of IANA, deprecated ranges and multicast.
	for _, prefix := range strings.Fields(`0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24
		192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
		::/128 ::1/128 ::/96 ::ffff:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001:db8::/32 2002::/16 3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8`) {
		p := netip.MustParsePrefix(prefix)
		last := p.Addr().AsSlice()
		for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
			last[bit/8] |= 1 << (7 - bit%8)
		}
		if end, _ := netip.AddrFromSlice(last); !isDenied(p.Addr()) || !isDenied(end) {
			t.Errorf("the relay reaches %s to %s", p.Addr(), end)
		}
	}
	for _, public := range strings.Fields("1.1.1.1 9.255.255.255 11.0.0.0 100.128.0.0 172.32.0.0 192.0.1.0 198.20.0.0 223.255.255.255 2001:200::1 2003::1 2606:4700::1111 2a00::1") {
		if isDenied(netip.MustParseAddr(public)) {
			t.Errorf("the relay does not reach %s", public)
		}
	}
}
