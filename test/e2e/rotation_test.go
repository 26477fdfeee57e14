package e2e

import (
	"maps"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/internal/redact"
	"telapi/internal/session"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Two instances go through the rotation that docs/operations.md describes, one
// restart at a time.
func TestJWTSecretRotation(t *testing.T) {
	const oldSecret, newSecret = harness.Secret, "the next secret, which has at least 32 bytes"
	stores := realStores(t)
	start := func(secret, previous string) *harness.Instance {
		env := maps.Clone(stores)
		env["JWT_SECRET"] = secret
		if previous != "" {
			env["JWT_SECRET_PREVIOUS"] = previous
		}
		return harness.Start(t, env)
	}
	instances := []*harness.Instance{start(oldSecret, ""), start(oldSecret, "")}
	tenant := harness.NewTenant(t, instances[0], "tenant")
	first := issue(t, instances[0], tenant, `"mode":"chat"`)

	check := func(step string, consoleSecrets ...string) {
		t.Helper()
		for n, issuer := range instances {
			latest := issue(t, issuer, tenant, `"mode":"chat"`)
			for m, i := range instances {
				for what, token := range map[string]string{"first session": first.Token, "new session": latest.Token} {
					if resp, body := i.Call(t, "GET", "/ws/session", "Authorization", "Bearer "+token); resp.StatusCode != 426 {
						t.Errorf("%s: %s of instance %d on instance %d: %d %s, want 426", step, what, n, m, resp.StatusCode, body)
					}
				}
				for _, secret := range consoleSecrets {
					if resp, body := i.Call(t, "GET", capabilities, "Authorization", "Bearer "+consoleJWTWithSecret(t, secret, tenant.Team.ID, auth.ReadTeamApps)); resp.StatusCode != 200 {
						t.Errorf("%s: console JWT on instance %d: %d %s, want 200", step, m, resp.StatusCode, body)
					}
				}
			}
		}
	}
	for _, s := range []struct {
		step, secret, previous string
		consoleSecrets         []string // accepted from the console once both instances are restarted
	}{
		{"accept the new secret", oldSecret, newSecret, []string{oldSecret, newSecret}},
		{"sign with the new secret", newSecret, oldSecret, []string{oldSecret, newSecret}},
	} {
		for n := range instances {
			testkit.Must(t, instances[n].Stop())
			instances[n] = start(s.secret, s.previous)
			check(s.step, oldSecret)
		}
		check(s.step, s.consoleSecrets...)
		signed := issue(t, instances[0], tenant, `"mode":"chat"`).Token
		secrets := auth.Secrets{Current: redact.Secret(s.secret)}.ForCallTokens()
		if _, err := jwt.Parse(signed, func(*jwt.Token) (any, error) { return []byte(secrets.Current.Reveal()), nil }); err != nil {
			t.Errorf("%s: a token was signed with JWT_SECRET_PREVIOUS: %v", s.step, err)
		}
	}

	last := start(newSecret, "")
	for _, token := range []string{first.Token, consoleJWTWithSecret(t, oldSecret, tenant.Team.ID, auth.ReadTeamApps)} {
		for _, path := range []string{"/ws/session", capabilities} {
			expectStatus(t, 401, code("UNAUTHORIZED"))(last.Call(t, "GET", path, "Authorization", "Bearer "+token))
		}
	}
}

func TestRejectedConsoleJWTIsExplained(t *testing.T) {
	hour := harness.Start(t, harness.Env{"JWT_MAX_AGE": "1h"})
	shorter := harness.Start(t, harness.Env{"JWT_MAX_AGE": "30m"})
	for _, c := range []struct {
		instance *harness.Instance
		status   int
		want     string
	}{{hour, 200, ""}, {shorter, 401, "longer than JWT_MAX_AGE (30m0s)"}} {
		tenant := harness.NewTenant(t, c.instance, "tenant")
		expectStatus(t, c.status, c.want)(c.instance.Call(t, "GET", capabilities, "Authorization", "Bearer "+consoleJWT(t, tenant.Team.ID, auth.ReadTeamApps))) // expires in an hour
	}
	expectStatus(t, 401, `\"tm_unknown\" is not a team`)(hour.Call(t, "GET", capabilities, "Authorization", "Bearer "+consoleJWT(t, "tm_unknown", auth.ReadTeamApps)))
}

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
