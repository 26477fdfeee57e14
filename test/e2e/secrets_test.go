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
	a, b := harness.Start(t, env), harness.Start(t, second)
	reports := func(i *harness.Instance, secret redact.Secret) bool {
		_, metrics := i.Call(t, "GET", "/metrics")
		return strings.Contains(metrics, "telapi_jwt_other_secrets 1") && i.Log.Has(`"other_fingerprints":"`+secret.Fingerprint()+`"`)
	}
	testkit.Until(t, "the instance that compares last reports the secret of the other", func() bool {
		return reports(a, other) || reports(b, harness.Secret)
	})
	if b.Log.Has(harness.Secret) || a.Log.Has(other) {
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
	expectStatus(t, 401, code("UNAUTHORIZED"))(b.Call(t, "GET", "/api/v1/endpoints", "Authorization", "Bearer "+consoleJWT(t, "t", auth.ReadTeamApps)))
	expectStatus(t, 401, code("UNAUTHORIZED"))(b.Call(t, "GET", session.SocketPath, "Authorization", "Bearer garbage"))
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
