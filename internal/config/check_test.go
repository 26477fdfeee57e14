package config

import (
	"strings"
	"testing"
)

func TestErrorOfMalformedCollectorHeadersOmitsValue(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS", "OTEL_EXPORTER_OTLP_LOGS_HEADERS"} {
		for _, malformed := range []string{"hunter2", "api-key: hunter2", "a=b,hunter2", "authorization=Bearer hunter2%zz", "Bearer hunter2==", "=hunter2", "a=hunter2%0d%0ab"} {
			_, _, err := Load([]string{name + "=" + malformed}, Tool)
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "name=value") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s=%s: error %v, want one with the name and the format, without the value", name, malformed, err)
			}
		}
		for _, valid := range []string{"a=b", "authorization=Bearer%20hunter2==,x-tenant=ü, y=,", "authorization=Basic dTpw"} {
			load(t, Tool, name+"="+valid)
		}
	}
}
