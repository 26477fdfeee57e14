package operations

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/oasdiff/yaml"

	"telapi/test/testkit"
)

const alertsFile = "../../deploy/prometheus/alerts.yaml"

// rule is a part of an alert rule.
type rule struct {
	Alert               string
	Labels, Annotations map[string]string
}

// series are input series of promtool: the values of consecutive minutes.
type series map[string]string

// Counters and gauges over an hour.
const (
	one      = "1x60"
	zero     = "0x60"
	rising   = "0+600x60" // 10 a second
	slow     = "0+6x60"   // 0.1 a second
	increase = "0x30 1x30"
)

// alertTests has one row per alert, with series for which it fires after an hour and
// similar ones for which it doesn't.
var alertTests = map[string]struct {
	fires, quiet []series
	labels       map[string]string // of the alert that fires, besides severity
}{
	"TelapiInstanceDown": {
		[]series{{`up{job="telapi",instance="a"}`: zero}}, []series{{`up{job="telapi",instance="a"}`: one}, {`up{job="other",instance="a"}`: zero}},
		map[string]string{"job": "telapi", "instance": "a"},
	},
	"TelapiAbsent": {
		[]series{{`up{job="telapi-media",instance="m"}`: one}}, []series{{`up{job="telapi",instance="a"}`: zero}}, map[string]string{"job": "telapi"},
	},
	"TelapiMediaAbsent": {
		[]series{{`telapi_dependency_up{dependency="media",instance="a"}`: zero}},
		[]series{{`telapi_dependency_up{dependency="kv",instance="a"}`: one}, {`up{job="telapi-media",instance="m"}`: zero, `telapi_dependency_up{dependency="media",instance="a"}`: one}},
		map[string]string{"job": "telapi-media"},
	},
	"TelapiMediaDown": {
		[]series{{`up{job="telapi-media",instance="m"}`: zero}}, []series{{`up{job="telapi-media",instance="m"}`: one}},
		map[string]string{"job": "telapi-media", "instance": "m"},
	},
	"TelapiSecretsDiffer": {
		[]series{{`telapi_jwt_other_secrets{instance="a"}`: zero, `telapi_jwt_other_secrets{instance="b"}`: one}}, []series{{`telapi_jwt_other_secrets`: zero}}, nil,
	},
	"TelapiMediaFull": {
		[]series{{`telapi_media_requests_total{status="507"}`: slow}}, []series{{`telapi_media_requests_total{status="201"}`: slow}}, nil,
	},
	"TelapiErrors": {
		[]series{
			{`telapi_http_requests_total{status="500"}`: slow, `telapi_http_requests_total{status="200"}`: slow},
			{`telapi_http_requests_total{status="500"}`: slow, `telapi_http_requests_total{route="/health",status="200"}`: rising, `telapi_dependency_up{dependency="kv"}`: one},
			{`telapi_http_requests_total{status="503"}`: slow, `telapi_dependency_up{dependency="kv"}`: "1x20 0x10 1x30", `telapi_dependency_up{dependency="media"}`: zero},
		},
		[]series{
			{`telapi_http_requests_total{status="500"}`: slow, `telapi_http_requests_total{status="200"}`: "0+6000x60"},
			{`telapi_http_requests_total{status="404"}`: slow},
			{`telapi_http_requests_total{route="/health",status="503"}`: rising, `telapi_http_requests_total{route="/",status="200"}`: slow},
			// Redis or PostgreSQL was away for ten minutes and is back for two: requests succeed again.
			{`telapi_http_requests_total{status="503"}`: "0x48 0+600x10 6000x10", `telapi_http_requests_total{status="200"}`: "0+600x48 28800x10 28800+600x10",
				`telapi_dependency_up{dependency="kv",instance="a"}`: "1x48 0x9 1x10", `telapi_dependency_up{dependency="kv",instance="b"}`: one},
			{`telapi_http_requests_total{status="503"}`: "0x48 0+600x10 6000x10", `telapi_dependency_up{dependency="database"}`: "1x48 0x9 1x10"},
		}, nil,
	},
	"TelapiStoreAway": {
		[]series{
			{`telapi_dependency_up{dependency="kv",instance="a"}`: one, `telapi_dependency_up{dependency="kv",instance="quiet"}`: zero},
			{`telapi_ratelimit_decisions_total{decision="failed"}`: slow},
			{`telapi_callbacks_total{outcome="SERVICE_UNAVAILABLE"}`: slow},
			{`telapi_sockets_closed_total{code="4005"}`: slow},
		},
		[]series{
			{`telapi_dependency_up{dependency="kv",instance="a"}`: one, `telapi_dependency_up{dependency="media",instance="a"}`: zero},
			{`telapi_ratelimit_decisions_total{decision="failed"}`: zero, `telapi_ratelimit_decisions_total{decision="rejected"}`: slow},
			{`telapi_callbacks_total{outcome="accepted"}`: slow, `telapi_sockets_closed_total{code="1012"}`: slow},
		}, nil,
	},
	"TelapiStoreFull": {
		[]series{{`telapi_kv_full{instance="a"}`: zero, `telapi_kv_full{instance="b"}`: "0x55 1 0x5"}},
		[]series{{`telapi_kv_full{instance="a"}`: zero}, {`telapi_kv_full{instance="a"}`: "1x30 0x30"}}, nil,
	},
	"TelapiDatabaseAway": {
		[]series{{`telapi_dependency_up{dependency="database"}`: zero}}, []series{{`telapi_dependency_up{dependency="database"}`: one, `telapi_dependency_up{dependency="kv"}`: zero}}, nil,
	},
	"TelapiRuntimeBehind": {
		[]series{{`telapi_frames_rejected_total{code="BACKPRESSURE"}`: slow}, {`telapi_callbacks_total{outcome="BACKPRESSURE"}`: slow}},
		[]series{{`telapi_frames_rejected_total{code="VALIDATION_ERROR"}`: slow, `telapi_frames_rejected_total{code="BACKPRESSURE"}`: zero}}, nil,
	},
	"TelapiSessionsWaiting": {
		[]series{{`telapi_sessions_waiting_seconds{instance="a"}`: zero, `telapi_sessions_waiting_seconds{instance="b"}`: "31x60"}},
		[]series{{`telapi_sessions_waiting_seconds{instance="a"}`: zero, `telapi_sessions_waiting_seconds{instance="b"}`: "30x60"}}, nil,
	},
	"TelapiRecoveriesFail": {
		[]series{{`telapi_recoveries_total{outcome="failed"}`: slow, `telapi_recoveries_total{outcome="recovered"}`: slow}},
		[]series{{`telapi_recoveries_total{outcome="failed"}`: slow, `telapi_recoveries_total{outcome="recovered"}`: rising}}, nil,
	},
	"TelapiSlowAcknowledgements": {
		[]series{{`telapi_frame_ack_seconds_bucket{le="1"}`: slow, `telapi_frame_ack_seconds_bucket{le="2.5"}`: rising, `telapi_frame_ack_seconds_bucket{le="+Inf"}`: rising}},
		[]series{{`telapi_frame_ack_seconds_bucket{le="1"}`: rising, `telapi_frame_ack_seconds_bucket{le="2.5"}`: rising, `telapi_frame_ack_seconds_bucket{le="+Inf"}`: rising}}, nil,
	},
	"TelapiFlood": {
		[]series{{`telapi_ratelimit_decisions_total{tier="api",decision="rejected"}`: "0+900x60"}},
		[]series{{`telapi_ratelimit_decisions_total{tier="api",decision="rejected"}`: slow, `telapi_ratelimit_decisions_total{tier="api",decision="allowed"}`: "0+900x60"}},
		map[string]string{"tier": "api"},
	},
	"TelapiUnauthorized": {
		[]series{{`telapi_http_requests_total{status="401"}`: rising}},
		[]series{{`telapi_http_requests_total{status="401"}`: slow}, {`telapi_http_requests_total{status="403"}`: rising}}, nil,
	},
	"TelapiLimitsInvalid": {
		[]series{{`telapi_ratelimit_limits_rejected_total`: increase}}, []series{{`telapi_ratelimit_limits_rejected_total`: one}}, nil,
	},
	"TelapiSpeechFails": {
		[]series{
			{`telapi_speech_syntheses_total{provider="p",outcome="failed"}`: slow, `telapi_speech_syntheses_total{provider="p",outcome="ok"}`: slow},
			{`telapi_speech_syntheses_total{provider="p",outcome="misconfigured"}`: slow},
			{`telapi_speech_syntheses_total{provider="p",outcome="rate_limited"}`: slow, `telapi_speech_syntheses_total{provider="other",outcome="ok"}`: rising},
		},
		[]series{
			{`telapi_speech_syntheses_total{provider="p",outcome="failed"}`: slow, `telapi_speech_syntheses_total{provider="p",outcome="ok"}`: rising},
			{`telapi_speech_syntheses_total{provider="p",outcome="rejected"}`: slow, `telapi_speech_syntheses_total{provider="p",outcome="failed"}`: zero},
		},
		map[string]string{"provider": "p"},
	},
	"TelapiUsageNotCounted": {
		[]series{{`telapi_usage_reports_lost_total`: increase}, {`telapi_usage_reports_total{outcome="rejected"}`: increase}, {`telapi_usage_reports_waiting`: "20000x60"}},
		[]series{{`telapi_usage_reports_lost_total`: zero, `telapi_usage_reports_total{outcome="counted"}`: rising, `telapi_usage_reports_waiting`: "100x60"}}, nil,
	},
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(alertsFile)
	testkit.Must(t, err)
	var file struct{ Groups []struct{ Rules []rule } }
	testkit.Must(t, testkit.ErrorOf(yaml.Unmarshal(raw, &file, yaml.DecodeOpts{})))
	var tests []any
	for _, r := range file.Groups[0].Rules {
		tt, ok := alertTests[r.Alert]
		if !ok || len(tt.fires) == 0 || len(tt.quiet) == 0 {
			t.Errorf("%s: no test", r.Alert)
		}
		labels := map[string]string{"severity": r.Labels["severity"]}
		for name, value := range tt.labels {
			labels[name] = value
		}
		alert := map[string]any{"exp_labels": labels, "exp_annotations": r.Annotations}
		for _, s := range tt.fires {
			tests = append(tests, promtoolTest(r.Alert, s, alert))
		}
		for _, s := range tt.quiet {
			tests = append(tests, promtoolTest(r.Alert, s))
		}
	}
	path, err := filepath.Abs(alertsFile)
	testkit.Must(t, err)
	// JSON is also YAML.
	test, err := json.Marshal(map[string]any{"rule_files": []string{path}, "tests": tests})
	testkit.Must(t, err)
	input := filepath.Join(t.TempDir(), "tests.yaml")
	testkit.Must(t, os.WriteFile(input, test, 0o600))
	if out, err := exec.CommandContext(t.Context(), testkit.Promtool(t), "test", "rules", input).CombinedOutput(); err != nil {
		t.Errorf("promtool test rules: %v\n%s", err, out)
	}
}

// promtoolTest returns a unit test of promtool that evaluates an alert after an hour.
func promtoolTest(alert string, input series, want ...any) any {
	type line struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	var lines []line
	for name, values := range input {
		lines = append(lines, line{name, values})
	}
	return map[string]any{
		"interval": "1m", "input_series": lines,
		"alert_rule_test": []any{map[string]any{"eval_time": "1h", "alertname": alert, "exp_alerts": want}},
	}
}

func TestScrapeConfiguration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"prometheus.yaml", "alerts.yaml"} {
		content, err := os.ReadFile(filepath.Join("../../deploy/prometheus", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o600)
		}
		testkit.Must(t, err)
	}
	for name, content := range map[string][]byte{"metrics_token": []byte("x"), "media_ca.pem": testkit.NewCA(t).PEM()} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	if out, err := exec.CommandContext(t.Context(), testkit.Promtool(t), "check", "config", filepath.Join(dir, "prometheus.yaml")).CombinedOutput(); err != nil {
		t.Errorf("promtool check config: %v\n%s", err, out)
	}
}
