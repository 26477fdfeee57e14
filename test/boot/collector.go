package boot

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Collector is an OTLP endpoint that records everything exported to it.
type Collector struct {
	URL  string
	data Log
}

// StartCollector runs a collector until the test ends.
func StartCollector(t testing.TB) *Collector {
	c := &Collector{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = c.data.Write(append([]byte(r.URL.Path+"\n"), body...))
	}))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// String returns the path and body of every export so far.
func (c *Collector) String() string { return c.data.String() }

// Env returns the settings that export to the collector.
func (c *Collector) Env() Env {
	return Env{"OTEL_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": c.URL}
}
