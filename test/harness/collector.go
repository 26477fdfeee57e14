package harness

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"telapi/test/testkit"
)

// Collector is an OTLP endpoint that records everything exported to it.
type Collector struct {
	URL  string
	data testkit.Buffer

	mu    sync.Mutex
	spans []*tracepb.Span
}

// StartCollector runs a collector until the test ends.
func StartCollector(t testing.TB) *Collector {
	c := &Collector{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = c.data.Write(append([]byte(r.URL.Path+"\n"), body...))
		if r.URL.Path == "/v1/traces" {
			c.addSpans(t, body)
		}
	}))
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

func (c *Collector) addSpans(t testing.TB, body []byte) {
	var request collectorpb.ExportTraceServiceRequest
	testkit.NoError(t, "decode exported spans", proto.Unmarshal(body, &request))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
}

// Spans returns all spans that were exported so far.
func (c *Collector) Spans() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}

// String returns the path and body of every export so far.
func (c *Collector) String() string { return c.data.String() }

// Env returns the settings that export to the collector.
func (c *Collector) Env() Env {
	return Env{"OTEL_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": c.URL}
}
