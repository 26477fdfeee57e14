package e2e

import (
	"strings"
	"testing"

	"telapi/internal/auth"
	"telapi/internal/redact"
	"telapi/internal/session"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Two instances on the same stores, one of which has another JWT secret.
func TestDifferentJWTSecretsAreSeen(t *testing.T) {
	t.Parallel()
	env := realStores(t)
	const other = "another secret, which is long enough as well"
	second := harness.Env{"JWT_SECRET": other}
	for name, value := range env {
		second[name] = value
	}
	harness.Start(t, env)
	b := harness.Start(t, second)
	first := redact.Secret(harness.Secret)
	testkit.Until(t, "the second instance reports the secret of the first", func() bool {
		_, metrics := b.Call(t, "GET", "/metrics")
		return strings.Contains(metrics, "telapi_jwt_other_secrets 1") && b.Log.Has(`"other_fingerprints":"`+first.Fingerprint()+`"`)
	})
	if b.Log.Has(harness.Secret) {
		t.Error("the log has the secret")
	}
	// Each of the two fails the check, but not one with both secrets.
	for name, c := range map[string]struct {
		secrets harness.Env
		exit    bool
	}{
		"first":  {harness.Env{"JWT_SECRET": harness.Secret}, false},
		"second": {harness.Env{"JWT_SECRET": other}, false},
		"both":   {harness.Env{"JWT_SECRET": other, "JWT_SECRET_PREVIOUS": harness.Secret}, true},
	} {
		for name, value := range env {
			if c.secrets[name] == "" {
				c.secrets[name] = value
			}
		}
		r := telapi(t, c.secrets, "doctor", "--json")
		passed := !strings.Contains(r.stdout, "running instances have other JWT secrets")
		if passed != c.exit {
			t.Errorf("telapi doctor with the %s secret: passed %v, want %v\n%s%s", name, passed, c.exit, r.stdout, r.stderr)
		}
	}
	resp, body := b.Call(t, "GET", "/api/v1/endpoints", "Authorization", "Bearer "+consoleJWT(t, "t", auth.ReadTeamApps))
	wantStatus(t, resp, body, 401, code("UNAUTHORIZED"))
	resp, body = b.Call(t, "GET", session.SocketPath, "Authorization", "Bearer garbage")
	wantStatus(t, resp, body, 401, code("UNAUTHORIZED"))
	_, metrics := b.Call(t, "GET", "/metrics")
	for _, want := range []string{
		`telapi_jwt_failures_total{reason="signature",token="console"} 1`,
		`telapi_jwt_failures_total{reason="malformed",token="call"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s in the metrics", want)
		}
	}
}
