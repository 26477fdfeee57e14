package operations

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// runDoctor runs `telapi doctor` and returns its output and whether it exited with 0.
func runDoctor(t *testing.T, env harness.Env) (text string, healthy bool) {
	t.Helper()
	stdout, stderr, exitCode := harness.Run(t, harness.Merge(harness.Env{"JWT_SECRET": harness.Secret, "DATA_DIR": t.TempDir(), "TELAPI_PORT": "1"}, env), "doctor")
	return stdout + stderr, exitCode == 0
}

func TestDoctorAcceptsHealthySite(t *testing.T) {
	text, healthy := runDoctor(t, harness.Env{
		"DATABASE_URL": testkit.SharedPostgres(t).NewDatabase(t),
		"REDIS_URL":    testkit.StartRedis(t, testkit.RedisDurable(), testkit.RedisArgs("--maxmemory", "100mb")).URL(),
	})
	if strings.Contains(text, "maxmemory ") {
		t.Errorf("a warning about a limit that is set in\n%s", text)
	}
	for _, want := range []string{"PostgreSQL at", "noeviction", "appendonly", "agree within", "always on", "has no replicas"} {
		if !healthy || !strings.Contains(text, want) {
			t.Fatalf("healthy: %v, want true and %q in\n%s", healthy, want, text)
		}
	}
}

func TestDoctorDetectsProblems(t *testing.T) {
	redis := func(args ...string) func(*testing.T) harness.Env {
		return func(t *testing.T) harness.Env {
			return harness.Env{"REDIS_URL": testkit.StartRedis(t, testkit.RedisDurable(), testkit.RedisArgs(args...)).URL()}
		}
	}
	settings := func(env harness.Env) func(*testing.T) harness.Env {
		return func(*testing.T) harness.Env { return env }
	}
	for name, tt := range map[string]struct {
		env  func(*testing.T) harness.Env
		want []string
	}{
		"unreachable database":      {settings(harness.Env{"DATABASE_URL": "postgres://u:swordfish@127.0.0.1:1/x"}), []string{"FAIL", "DATABASE_URL"}},
		"unreachable Redis":         {settings(harness.Env{"REDIS_URL": "redis://127.0.0.1:1"}), []string{"FAIL", "REDIS_URL"}},
		"unreachable media service": {settings(harness.Env{"TTS_MEDIA_CACHE_BASE_URL": "https://127.0.0.1:1"}), []string{"FAIL", "TTS_MEDIA_CACHE_BASE_URL"}},
		"RATE_LIMIT_WINDOW_MS":      {settings(harness.Env{"RATE_LIMIT_WINDOW_MS": "10"}), []string{"FAIL", "RATE_LIMIT_WINDOW_MS", "remove it"}},
		"invalid saved limits": {func(t *testing.T) harness.Env {
			redis := testkit.StartRedis(t, testkit.RedisDurable())
			redis.MustDo("SET", "telapi:limits", "{}")
			return harness.Env{"REDIS_URL": redis.URL()}
		}, []string{"FAIL", "stored rate limits are invalid"}},
		"Redis evicts keys":    {redis("--maxmemory-policy", "allkeys-lru"), []string{"maxmemory-policy", "allkeys-lru", "noeviction"}},
		"Redis is not durable": {redis("--appendonly", "no"), []string{"appendonly", "Set it to yes"}},
		"Redis never syncs":    {redis("--appendfsync", "no"), []string{"appendfsync", "Set it to always"}},
		"Redis has no replicas": {func(t *testing.T) harness.Env {
			return harness.Merge(redis()(t), harness.Env{"KV_MIN_REPLICAS": "2"})
		}, []string{"has 0 replicas, but KV_MIN_REPLICAS is 2"}},
		"clocks differ by more than an hour": {func(t *testing.T) harness.Env { // the measured difference can be a bit smaller or larger
			return harness.Env{"DATABASE_URL": testkit.StartPostgres(t, testkit.PostgresOptions{Clock: "+90m"}).URL()}
		}, []string{"clocks", "differs by 1h", "NTP"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, healthy := runDoctor(t, tt.env(t))
			if strings.Contains(text, "swordfish") {
				t.Error("the output shows a password")
			}
			for _, want := range tt.want {
				if healthy || !strings.Contains(text, want) {
					t.Fatalf("healthy: %v, want false and %q in\n%s", healthy, want, text)
				}
			}
		})
	}
}

func TestDoctorWarnsOfLossInFailures(t *testing.T) {
	t.Parallel()
	master := testkit.StartRedis(t, testkit.RedisDurable(), testkit.RedisArgs("--appendfsync", "everysec"))
	testkit.StartReplica(t, master)
	for _, tt := range []struct{ minToWrite, minReplicas, want string }{
		{"0", "0", "accepts writes that a failover discards. Set it to 1"},
		{"1", "0", "Set KV_MIN_REPLICAS to 1"},
		{"1", "1", "; KV_MIN_REPLICAS is 1"},
	} {
		master.MustDo("CONFIG", "SET", "min-replicas-to-write", tt.minToWrite)
		text, healthy := runDoctor(t, harness.Env{"REDIS_URL": master.URL(), "KV_MIN_REPLICAS": tt.minReplicas})
		for _, want := range []string{"warn  appendfsync", "loses up to 2 s", "warn  maxmemory ", tt.want} {
			if !healthy || !strings.Contains(text, want) {
				t.Errorf("healthy: %v, want true and %q in\n%s", healthy, want, text)
			}
		}
	}
}

func TestDoctorDetectsWrongCABundle(t *testing.T) {
	ours, theirs := testkit.NewCA(t), testkit.NewCA(t)
	_, cert, key := ours.Files(t, t.TempDir(), "127.0.0.1")
	port := testkit.FreePort(t)
	harness.StartProcess(t, harness.Env{
		"MEDIA_PORT": fmt.Sprint(port), "MEDIA_ROOT": t.TempDir(), "MEDIA_UPLOAD_TOKEN": "let me in",
		"MEDIA_TLS_CERT_FILE": cert, "MEDIA_TLS_KEY_FILE": key,
	}, "media")
	url := fmt.Sprintf("https://127.0.0.1:%d", port)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: ours.ClientTLS()}}
	testkit.Until(t, "the media service is up", func() bool {
		resp, err := client.Get(url + "/health")
		return err == nil && resp.Body.Close() == nil
	})
	for bundle, want := range map[*testkit.CA]bool{ours: true, theirs: false} {
		text, healthy := runDoctor(t, harness.Env{"TTS_MEDIA_CACHE_BASE_URL": url, "TTS_MEDIA_CACHE_CA_BUNDLE": string(bundle.PEM())})
		if healthy != want || healthy == strings.Contains(text, "certificate not trusted") {
			t.Errorf("healthy: %v, want %v\n%s", healthy, want, text)
		}
	}
}
