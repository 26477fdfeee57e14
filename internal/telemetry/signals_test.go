package telemetry

import "testing"

func TestOnlySignalsWithEndpointAreExported(t *testing.T) {
	c := startCollector(t)
	for path, o := range map[string]Endpoints{
		"/v1/traces":  {Traces: c.URL + "/v1/traces"},
		"/v1/metrics": {Metrics: c.URL + "/v1/metrics"},
		"/v1/logs":    {Logs: c.URL + "/v1/logs"},
	} {
		clear(c.received)
		tele, log := startTelemetry(t, Options{Export: true, Endpoints: o})
		emitSecrets(t, tele)
		if err := tele.Shutdown(t.Context()); err != nil || len(c.received) != 1 || c.received[path] == "" {
			t.Errorf("%+v: received requests for %d paths (shutdown error %v), want only %s; log: %s", o, len(c.received), err, path, log)
		}
	}
}
