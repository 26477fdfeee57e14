package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"telapi/internal/auth"
	"telapi/test/boot"
	"telapi/test/poll"
)

// Whatever way a secret or a phone number comes in, it leaves in no log line,
// metric, trace or error.
func TestSecretsAndPhoneNumbersAreNotLeaked(t *testing.T) {
	var mu sync.Mutex
	var exported strings.Builder
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		exported.WriteString(r.URL.Path + "\n")
		exported.Write(body)
	}))
	defer collector.Close()
	i := boot.Start(t, boot.Env{
		"LOG_LEVEL": "debug", "OTEL_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL, "METRICS_TOKEN": "metrics-swordfish-4711",
	})
	own := newTenant(t, i, "own")
	bearer := consoleJWT(t, own.team.ID, auth.Scopes...)
	callbackToken := strings.Repeat("cAlLbAcK0", 5)[:43]
	wrongKey := "tk_GUESS_" + strings.Repeat("Zz0", 15)[:43]
	const phone = "+4930123456789"

	var answers strings.Builder
	for _, headers := range [][]string{
		{"X-API-Key", own.key},
		{"X-API-Key", wrongKey},
		{"Authorization", "Bearer " + bearer},
		{"Authorization", "Bearer " + bearer + "x"},
		{"X-API-Key", own.key, "X-Request-Id", own.key},
		{"X-API-Key", own.key, "User-Agent", own.key, "Referer", "https://x/?token=" + callbackToken},
	} {
		for _, path := range []string{
			"/api/v1/endpoints?token=" + callbackToken + "&phone=" + phone,
			"/api/v1/runtime/endpoints/" + own.key,
			"/api/v1/runtime/endpoints/tel:" + phone,
			"/nothing/" + bearer,
			"/nothing/tel:" + phone,
		} {
			_, body := call(t, i, "GET", path, headers...)
			answers.WriteString(body)
		}
	}
	_, metrics := call(t, i, "GET", "/metrics", "Authorization", "Bearer metrics-swordfish-4711")
	if !strings.Contains(metrics, "telapi_http_requests_total") {
		t.Fatalf("/metrics says %.200s", metrics)
	}
	if err := i.Stop(); err != nil { // flushes what is exported
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, path := range []string{"/v1/traces", "/v1/logs", "/v1/metrics"} {
		if !strings.Contains(exported.String(), path) {
			t.Errorf("nothing was exported to %s", path)
		}
	}
	secret := strings.TrimPrefix(own.key, "tk_"+own.keyID+"_")
	for where, text := range map[string]string{
		"log": i.Log.String(), "metrics": metrics, "export": exported.String(), "answers": answers.String(),
	} {
		for what, value := range map[string]string{
			"API key": secret, "wrong API key": strings.TrimPrefix(wrongKey, "tk_GUESS_"), "JWT": bearer, "JWT signature": bearer[strings.LastIndex(bearer, ".")+1:],
			"callback token": callbackToken, "signing secret": boot.Secret, "metrics token": "metrics-swordfish-4711",
		} {
			if strings.Contains(text, value) {
				at := strings.Index(text, value)
				t.Errorf("%s holds the %s: …%.200q", where, what, text[max(0, at-150):])
			}
		}
		if where != "answers" && strings.Contains(text, "30123456789") {
			t.Errorf("%s holds a phone number", where)
		}
	}
	if !i.Log.Has("6789") {
		t.Error("a masked number keeps its last four digits, and the log has none")
	}
}

func TestMetricsRequireToken(t *testing.T) {
	i := boot.Start(t, boot.Env{"METRICS_TOKEN": "metrics-swordfish"})
	resp, body := call(t, i, "GET", "/metrics")
	wantStatus(t, resp, body, 401, code("UNAUTHORIZED"))
	resp, body = call(t, i, "GET", "/metrics", "Authorization", "Bearer wrong")
	wantStatus(t, resp, body, 401, code("UNAUTHORIZED"))
	if resp, _ := call(t, i, "GET", "/metrics", "Authorization", "Bearer metrics-swordfish"); resp.StatusCode != 200 {
		t.Errorf("with the token: %d", resp.StatusCode)
	}
}

func TestLogLevelFiltersRequests(t *testing.T) {
	for level, want := range map[string]bool{"debug": true, "info": true, "warn": false, "error": false} {
		i := boot.Start(t, boot.Env{"LOG_LEVEL": level})
		call(t, i, "GET", "/nothing")
		if level == "info" || level == "debug" {
			poll.Until(t, "the request is logged", func() bool { return i.Log.Has(`"msg":"request"`) })
		}
		if got := i.Log.Has(`"msg":"request"`); got != want {
			t.Errorf("LOG_LEVEL=%s: requests are logged: %v", level, got)
		}
	}
}
