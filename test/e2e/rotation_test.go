package e2e

import (
	"maps"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"telapi/internal/auth"
	"telapi/test/boot"
)

// TestJWTSecretRotation walks two instances through a rotation,
// one restart at a time, the way docs/operations.md tells it.
func TestJWTSecretRotation(t *testing.T) {
	const old, fresh = boot.Secret, "the secret that comes after it, and as long"
	stores := realStores(t)
	start := func(secret, previous string) *boot.Instance {
		env := maps.Clone(stores)
		env["JWT_SECRET"] = secret
		if previous != "" {
			env["JWT_SECRET_PREVIOUS"] = previous
		}
		return boot.Start(t, env)
	}
	instances := []*boot.Instance{start(old, ""), start(old, "")}
	own := newTenant(t, instances[0], "own")
	early := issue(t, instances[0], own, `"mode":"chat"`)

	check := func(step string, consoles ...string) {
		t.Helper()
		for n, issuer := range instances {
			late := issue(t, issuer, own, `"mode":"chat"`)
			for m, i := range instances {
				for what, token := range map[string]string{"an early session": early.Token, "a new session": late.Token} {
					if resp, body := call(t, i, "GET", "/ws/session", "Authorization", "Bearer "+token); resp.StatusCode != 426 {
						t.Errorf("%s: %s of instance %d on instance %d: %d %s", step, what, n, m, resp.StatusCode, body)
					}
				}
				for _, secret := range consoles {
					if resp, body := call(t, i, "GET", capabilities, "Authorization", "Bearer "+consoleJWTUnder(t, secret, own.team.ID, auth.ReadTeamApps)); resp.StatusCode != 200 {
						t.Errorf("%s: a console JWT on instance %d: %d %s", step, m, resp.StatusCode, body)
					}
				}
			}
		}
	}
	for _, s := range []struct {
		step, secret, previous string
		consoles               []string // the secrets that the console may sign with once both were restarted
	}{
		{"the new secret is accepted", old, fresh, []string{old, fresh}},
		{"the new secret signs", fresh, old, []string{old, fresh}},
	} {
		for n := range instances {
			if err := instances[n].Stop(); err != nil {
				t.Fatal(err)
			}
			instances[n] = start(s.secret, s.previous)
			check(s.step, old)
		}
		check(s.step, s.consoles...)
		signed := issue(t, instances[0], own, `"mode":"chat"`).Token
		if _, err := jwt.Parse(signed, func(*jwt.Token) (any, error) { return []byte(s.secret), nil }); err != nil {
			t.Errorf("%s: a token was signed with JWT_SECRET_PREVIOUS: %v", s.step, err)
		}
	}

	last := start(fresh, "")
	for _, token := range []string{early.Token, consoleJWTUnder(t, old, own.team.ID, auth.ReadTeamApps)} {
		for _, path := range []string{"/ws/session", capabilities} {
			resp, body := call(t, last, "GET", path, "Authorization", "Bearer "+token)
			wantStatus(t, resp, body, 401, code("UNAUTHORIZED"))
		}
	}
}
