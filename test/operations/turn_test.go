package operations

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/boot"
	"telapi/test/servers"
)

// startCoturn runs coturn with deploy/coturn/turnserver.conf and the given secrets. It
// returns settings that use it, with TURN over UDP, TCP and TLS.
func startCoturn(t *testing.T, secrets ...string) boot.Env {
	t.Helper()
	raw, err := os.ReadFile("../../deploy/coturn/turnserver.conf")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	caFile, certFile, keyFile := servers.NewCA(t).Files(t, dir, "127.0.0.1")
	port, tlsPort := servers.FreePort(t), servers.FreePort(t)
	config := strings.NewReplacer(
		"static-auth-secret=CHANGE-ME", "static-auth-secret="+strings.Join(secrets, "\nstatic-auth-secret="),
		"listening-port=3478", fmt.Sprintf("listening-port=%d", port), "listening-port=5349", fmt.Sprintf("listening-port=%d", tlsPort),
		"/etc/coturn/turn.pem", certFile, "/etc/coturn/turn.key", keyFile,
	).Replace(string(raw))
	file := filepath.Join(dir, "turnserver.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	servers.StartCoturn(t, file, port)
	return boot.Env{
		"WEBRTC_ICE_SERVERS": fmt.Sprintf("stun:127.0.0.1:%d,turn:127.0.0.1:%[1]d,turn:127.0.0.1:%[1]d?transport=tcp,turns:127.0.0.1:%d?transport=tcp", port, tlsPort),
		"TURN_SHARED_SECRET": secrets[0], "SSL_CERT_FILE": caFile,
	}
}

func TestDoctorProbesTURN(t *testing.T) {
	t.Parallel()
	const oldSecret, newSecret = "old-secret-of-coturn", "new-secret-of-coturn"
	env := startCoturn(t, oldSecret, newSecret)
	for _, secret := range []string{oldSecret, newSecret} { // both, while the secret is changed
		text, healthy := runDoctor(t, boot.Merge(env, boot.Env{"TURN_SHARED_SECRET": secret}))
		if !healthy || strings.Count(text, "available; it relays through 127.0.0.1:") != 3 || strings.Count(text, "available; it sees this machine as 127.0.0.1:") != 1 {
			t.Errorf("%s: healthy %v, want one STUN and three TURN servers in\n%s", secret, healthy, text)
		}
	}
	text, healthy := runDoctor(t, boot.Merge(env, boot.Env{"TURN_SHARED_SECRET": "swordfish"}))
	if healthy || strings.Count(text, "static-auth-secret") != 3 || strings.Contains(text, "swordfish") {
		t.Errorf("wrong secret: healthy %v, want three problems and no secret in\n%s", healthy, text)
	}
	text, healthy = runDoctor(t, boot.Env{"WEBRTC_ICE_SERVERS": "turn:127.0.0.1:1?transport=tcp", "TURN_SHARED_SECRET": oldSecret})
	if healthy || !strings.Contains(text, "turn:127.0.0.1:1?transport=tcp: unreachable") {
		t.Errorf("no server: healthy %v, want it unreachable in\n%s", healthy, text)
	}
	text, healthy = runDoctor(t, boot.Merge(env, boot.Env{"SSL_CERT_FILE": ""}))
	if healthy || !strings.Contains(text, "certificate") {
		t.Errorf("unknown CA: healthy %v, want the certificate in\n%s", healthy, text)
	}
}
