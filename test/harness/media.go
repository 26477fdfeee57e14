package harness

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"testing"

	"telapi/internal/app"
	"telapi/internal/config"
	"telapi/test/testkit"
)

const uploadToken = "upload-token-that-only-tests-know"

// Media is a media service over HTTPS that can be stopped and restarted.
type Media struct {
	Env  Env    // for an API server that uses it
	Root string // directory of its files

	settings Env // of the media service
	stop     func()
}

// StartMedia runs the media service, without a memory cache, until the test ends.
func StartMedia(t testing.TB) *Media {
	t.Helper()
	ca, dir, port := testkit.NewCA(t), t.TempDir(), testkit.FreePort(t)
	_, cert, key := ca.Files(t, dir, "127.0.0.1")
	m := &Media{Root: filepath.Join(dir, "objects"), stop: func() {}}
	m.Env = Env{
		"TTS_MEDIA_CACHE_BASE_URL":     fmt.Sprintf("https://127.0.0.1:%d", port),
		"TTS_MEDIA_CACHE_UPLOAD_TOKEN": uploadToken,
		"TTS_MEDIA_CACHE_CA_BUNDLE":    string(ca.PEM()),
	}
	m.settings = Env{
		"MEDIA_PORT": fmt.Sprint(port), "MEDIA_HOST": "127.0.0.1", "MEDIA_ROOT": m.Root, "MEDIA_UPLOAD_TOKEN": uploadToken, "MEDIA_MEMORY_BYTES": "0",
		"MEDIA_TLS_CERT_FILE": cert, "MEDIA_TLS_KEY_FILE": key, "OTEL_ENABLED": "false", "DRAIN_DELAY": "0s", "DATA_DIR": dir,
	}
	m.Start(t)
	t.Cleanup(func() { m.Stop() })
	return m
}

// Start starts the service, also again after Stop.
func (m *Media) Start(t testing.TB) {
	t.Helper()
	var environ []string
	for name, value := range m.settings {
		environ = append(environ, name+"="+value)
	}
	cfg, _, err := config.Load(environ, config.Tool)
	if err != nil {
		t.Fatalf("load configuration of the media service: %v", err)
	}
	service, err := app.NewMedia(t.Context(), cfg, app.Options{Version: version, Log: &testkit.Buffer{}})
	if err != nil {
		t.Fatalf("create media service: %v", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		testkit.NoError(t, "media service", service.Run(ctx))
	}()
	m.stop = func() { cancel(); <-done }
}

// Stop stops the service.
func (m *Media) Stop() { m.stop() }

// Merge returns the union of environments. Later ones take precedence.
func Merge(envs ...Env) Env {
	merged := Env{}
	for _, env := range envs {
		maps.Copy(merged, env)
	}
	return merged
}
