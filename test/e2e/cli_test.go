package e2e

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"telapi/internal/cache"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestAdminCommandsWithRunningServer(t *testing.T) {
	onEmbeddedAndReal(t, func(t *testing.T, stores harness.Env) {
		env, _ := harness.ServeEnv(t, stores)
		i, _ := harness.Serve(t, env)

		teamID := harness.RunJSON(t, env, "team", "create", "Acme")["id"].(string)
		renamed := harness.RunJSON(t, env, "team", "update", teamID, "--name", "Acme Ltd")
		if renamed["name"] != "Acme Ltd" || harness.RunJSON(t, env, "team", "show", teamID)["name"] != "Acme Ltd" {
			t.Errorf("team update printed %v, want the name Acme Ltd there and in team show", renamed)
		}
		profile := filepath.Join(t.TempDir(), "profile.json")
		testkit.Must(t, os.WriteFile(profile, []byte(`{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true}]}`), 0o600))
		ep := harness.RunJSON(t, env, "endpoint", "create", "--team", teamID, "--name", "Shop", "--mode", "chat", "--mode", "webrtc",
			"--origin", "https://shop.example", "--profile", profile)
		if fmt.Sprint(ep["modes"]) != "[webrtc chat]" || fmt.Sprint(ep["origins"]) != "[https://shop.example]" {
			t.Errorf("endpoint is %v, want modes webrtc and chat and one origin", ep)
		}
		disabled := harness.RunJSON(t, env, "endpoint", "update", ep["id"].(string), "--enabled=false")
		if disabled["enabled"] != false || disabled["name"] != "Shop" {
			t.Errorf("endpoint is %v, want it disabled with the same name", disabled)
		}

		key := harness.RunJSON(t, env, "key", "create", "--team", teamID, "--scope", "READ_TEAM_APPS", "--name", "ci")
		keyID, secret := key["id"].(string), key["key"].(string)
		if resp, body := i.Call(t, "GET", "/api/v1/endpoints", "X-API-Key", secret); resp.StatusCode != 200 {
			t.Fatalf("new key: %d %s, want 200", resp.StatusCode, body)
		}
		if shown := telapi(t, env, "key", "show", keyID, "--json"); strings.Contains(shown.stdout, secret) {
			t.Error("key show prints the secret")
		}
		if list := telapi(t, env, "key", "list", "--team", teamID, "--json"); strings.Count(list.stdout, "\n") != 1 || !strings.Contains(list.stdout, keyID) {
			t.Errorf("key list prints %q, want one line with %s", list.stdout, keyID)
		}

		if team := harness.RunJSON(t, env, "team", "update", teamID, "--disabled"); team["disabled"] != true || team["name"] != "Acme Ltd" {
			t.Errorf("team is %v, want it disabled with its name", team)
		}
		waitForStatus(t, i, 401, "/api/v1/endpoints", "X-API-Key", secret)
		harness.RunJSON(t, env, "team", "update", teamID, "--disabled=false")
		waitForStatus(t, i, 200, "/api/v1/endpoints", "X-API-Key", secret)
		harness.RunJSON(t, env, "endpoint", "delete", ep["id"].(string))
		telapi(t, env, "endpoint", "delete", ep["id"].(string)).expect(t, 1, "not found")
		var recorded []string
		for _, e := range auditLog(t, env, "--team", teamID) {
			recorded = append(recorded, strings.TrimPrefix(e.Actor.Type, "cli")+e.Action)
		}
		if want := strings.Fields("endpoint.delete team.update team.update key.create endpoint.update endpoint.create team.update team.create"); !slices.Equal(recorded, want) {
			t.Errorf("the command line recorded %q, want %q", recorded, want)
		}

		limits := harness.RunJSON(t, env, "limits", "set", "--tier", "api", "--max", "777", "--window", "1m")
		if !strings.Contains(fmt.Sprint(limits), "777") {
			t.Errorf("limits are %v, want 777 requests", limits)
		}
		quota := harness.RunJSON(t, env, "quota", "set", teamID, "12345")
		if quota["dailyQuota"] != float64(12345) {
			t.Errorf("quota is %v, want dailyQuota 12345", quota)
		}

		if revoked := harness.RunJSON(t, env, "key", "revoke", secret); revoked["id"] != keyID || revoked["state"] != "revoked" { // the key instead of its ID
			t.Errorf("key revoke printed %v, want key %s as revoked", revoked, keyID)
		}
		testkit.Within(t, cache.TTL/2, "the revoked key gets 401", func() bool {
			resp, _ := i.Call(t, "GET", "/api/v1/endpoints", "X-API-Key", secret)
			return resp.StatusCode == 401
		})
	})
}

func TestAdminCommandsWithoutServer(t *testing.T) {
	env := harness.Env{"DATA_DIR": t.TempDir()}
	teamID := harness.RunJSON(t, env, "team", "create", "Acme")["id"].(string)
	key := harness.RunJSON(t, env, "key", "create", "--team", teamID, "--scope", "READ_TEAM_APPS")
	harness.RunJSON(t, env, "key", "revoke", key["id"].(string))
	harness.RunJSON(t, env, "limits", "set", "--tier", "api", "--max", "42", "--window", "1m")

	i, tenant := startTenant(t, env)
	testkit.Until(t, "the saved limit applies", func() bool {
		return rateLimitPolicy(t, i, tenant.Key, "api") == `"api";q=42;w=60`
	})
}

func TestMigrateAppliesPendingMigrations(t *testing.T) {
	env := harness.Env{"DATABASE_URL": testkit.SharedPostgres(t).NewDatabase(t), "DATA_DIR": t.TempDir()}
	if before := harness.RunJSON(t, env, "migrate", "--status"); before["current"] != float64(0) || len(before["pending"].([]any)) == 0 {
		t.Errorf("empty database: %v, want version 0 and pending migrations", before)
	}
	if after := harness.RunJSON(t, env, "migrate"); after["current"] != after["newest"] || len(after["pending"].([]any)) != 0 {
		t.Errorf("after migrating: %v, want the newest version and nothing pending", after)
	}
}

// Revoking a key needs only the database. A failed announcement is reported, and
// commands that announce nothing work.
func TestKeyIsRevokedDuringRedisOutage(t *testing.T) {
	t.Parallel()
	redis := testkit.StartRedis(t)
	env := harness.Env{"DATABASE_URL": harness.Database(t), "REDIS_URL": redis.URL(), "DATA_DIR": t.TempDir()}
	teamID := harness.RunJSON(t, env, "team", "create", "Acme")["id"].(string)
	keyID := harness.RunJSON(t, env, "key", "create", "--team", teamID, "--scope", "READ_TEAM_APPS")["id"].(string)
	redis.Stop()
	r := telapi(t, env, "key", "revoke", keyID)
	if r.exit != 1 || !strings.Contains(r.stderr, "the key is revoked, but announcing it failed") {
		t.Errorf("key revoke: exit %d, stderr %s; want exit 1 and the failed announcement", r.exit, r.stderr)
	}
	if key := harness.RunJSON(t, env, "key", "show", keyID); key["state"] != "revoked" {
		t.Errorf("key is %v, want state revoked", key)
	}
}

func TestAdminCommandsRejectOldSchema(t *testing.T) {
	env := harness.Env{"DATABASE_URL": harness.Database(t), "DATA_DIR": t.TempDir(), "REDIS_URL": "redis://127.0.0.1:1"}
	db, err := sql.Open("pgx", env["DATABASE_URL"])
	testkit.Must(t, err)
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(t.Context(), "DELETE FROM goose_db_version WHERE version_id > 1")
	testkit.Must(t, err)
	telapi(t, env, "team", "list").expect(t, 1, "telapi migrate")
}

// result is the output of a finished command.
type result struct {
	args           []string
	stdout, stderr string
	exit           int
}

// expect fails the test unless the command ended with an exit code and printed the texts:
// to stderr, and nothing to stdout, if it failed.
func (r result) expect(t *testing.T, exit int, texts ...string) {
	t.Helper()
	output := r.stdout + r.stderr
	if exit != 0 {
		output = r.stderr
	}
	if r.exit != exit || exit != 0 && r.stdout != "" || !containsAll(output, texts...) {
		t.Errorf("telapi %q: exit %d, stdout %q, stderr %q; want exit %d and %q", r.args, r.exit, r.stdout, r.stderr, exit, texts)
	}
}

// telapi runs a command until it ends.
func telapi(t *testing.T, env harness.Env, args ...string) result {
	t.Helper()
	stdout, stderr, exit := harness.Run(t, env, args...)
	return result{args, stdout, stderr, exit}
}
