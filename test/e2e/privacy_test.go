package e2e

import (
	"strings"
	"testing"

	"telapi/internal/auth"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Secrets and phone numbers in requests do not appear in logs, metrics, traces or
// errors.
func TestSecretsAndPhoneNumbersAreNotLeaked(t *testing.T) {
	collector := harness.StartCollector(t)
	i, tenant := startTenant(t, harness.Merge(collector.Env(), harness.Env{"LOG_LEVEL": "debug", "METRICS_TOKEN": "metrics-swordfish-4711"}))
	bearer := consoleJWT(t, tenant.Team.ID, auth.Scopes...)
	callbackToken := strings.Repeat("cAlLbAcK0", 5)[:43]
	wrongKey := "tk_GUESS_" + strings.Repeat("Zz0", 15)[:43]
	const phone = "+4930123456789"

	var responses strings.Builder
	for _, headers := range [][]string{
		{"X-API-Key", tenant.Key},
		{"X-API-Key", wrongKey},
		{"Authorization", "Bearer " + bearer},
		{"Authorization", "Bearer " + bearer + "x"},
		{"X-API-Key", tenant.Key, "X-Request-Id", tenant.Key},
		{"X-API-Key", tenant.Key, "User-Agent", tenant.Key, "Referer", "https://x/?token=" + callbackToken},
	} {
		for _, path := range []string{
			"/api/v1/endpoints?token=" + callbackToken + "&phone=" + phone,
			"/api/v1/runtime/endpoints/" + tenant.Key,
			"/api/v1/runtime/endpoints/tel:" + phone,
			"/nothing/" + bearer,
			"/nothing/tel:" + phone,
		} {
			_, body := i.Call(t, "GET", path, headers...)
			responses.WriteString(body)
		}
	}
	_, metrics := i.Call(t, "GET", "/metrics", "Authorization", "Bearer metrics-swordfish-4711")
	if !strings.Contains(metrics, "telapi_http_requests_total") {
		t.Fatalf("/metrics returned %.200s, want telapi_http_requests_total", metrics)
	}
	testkit.Must(t, i.Stop()) // flushes the exporters
	testkit.Contains(t, "export", collector.String(), "/v1/traces", "/v1/logs", "/v1/metrics")
	secret := strings.TrimPrefix(tenant.Key, "tk_"+tenant.KeyID+"_")
	texts := map[string]string{"log": i.Log.String(), "metrics": metrics, "export": collector.String()}
	wantNotLeaked(t, texts, map[string]string{"phone number": "30123456789"})
	texts["responses"] = responses.String()
	wantNotLeaked(t, texts, map[string]string{
		"API key": secret, "wrong API key": strings.TrimPrefix(wrongKey, "tk_GUESS_"), "JWT": bearer, "JWT signature": bearer[strings.LastIndex(bearer, ".")+1:],
		"callback token": callbackToken, "signing secret": harness.Secret, "metrics token": "metrics-swordfish-4711",
	})
	if !i.Log.Has("6789") {
		t.Error("the log does not contain the last four digits of the masked phone number")
	}
}

func TestMetricsRequireToken(t *testing.T) {
	i := harness.Start(t, harness.Env{"METRICS_TOKEN": "metrics-swordfish"})
	expectStatus(t, 401, code("UNAUTHORIZED"))(i.Call(t, "GET", "/metrics"))
	expectStatus(t, 401, code("UNAUTHORIZED"))(i.Call(t, "GET", "/metrics", "Authorization", "Bearer wrong"))
	expectStatus(t, 200, "")(i.Call(t, "GET", "/metrics", "Authorization", "Bearer metrics-swordfish"))
}
