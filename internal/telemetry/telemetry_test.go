package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	logspb "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"telapi/internal/config"
	"telapi/internal/httpserve"
	"telapi/internal/redact"
	"telapi/test/leaks"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const (
	secret = "q8Zf3mN0vXc1B7yTtQe5KpLrS2wUoJ9hGdAi4EnRk_M"
	phone  = "+4915112345678"
)

// collector is an OTLP/HTTP receiver that records requests as text.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	requests int
	received map[string]string // requests as text, by path
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{received: map[string]string{}}
	messages := map[string]func() proto.Message{
		"/v1/traces":  func() proto.Message { return new(tracepb.ExportTraceServiceRequest) },
		"/v1/metrics": func() proto.Message { return new(metricspb.ExportMetricsServiceRequest) },
		"/v1/logs":    func() proto.Message { return new(logspb.ExportLogsServiceRequest) },
	}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		message := messages[r.URL.Path]
		if err != nil || message == nil {
			http.Error(w, "unexpected", http.StatusBadRequest)
			return
		}
		request := message()
		if err := proto.Unmarshal(body, request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.requests++
		c.received[r.URL.Path] += prototext.Format(request)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

// exportTo returns a configuration that exports all signals to a collector.
func exportTo(url string) config.Config { return config.Config{OTelEnabled: true, OTLPEndpoint: url} }

// startTelemetry returns telemetry and its log.
func startTelemetry(t *testing.T, cfg config.Config) (*Telemetry, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	cfg.MSISDNUnmaskedDigits = 4
	tele, err := New(t.Context(), cfg, "0.9.20", &log)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = tele.Shutdown(context.Background()) })
	return tele, &log
}

// emitSecrets puts secrets into logs, spans and metrics.
func emitSecrets(t *testing.T, tele *Telemetry) {
	t.Helper()
	calls := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "telapi_test_calls_total", Help: "For the test."}, []string{"line", "note"})
	tele.Registry.MustRegister(calls)
	calls.WithLabelValues(phone, "token="+secret).Inc()

	state, err := trace.ParseTraceState("plus=" + phone + ",digits=4915112345678,ot=th:8")
	testkit.Must(t, err)
	ctx := httpserve.WithRequestID(t.Context(), "req-1")
	ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{2}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true,
	}))
	ctx, span := tele.TracerProvider.Tracer("test").Start(ctx, "call "+phone, trace.WithAttributes(
		attribute.String("url", "/ws/session?token="+secret), attribute.String("authorization", secret),
		attribute.StringSlice("numbers", []string{phone}), attribute.Int64("caller", 4915112345678),
		attribute.String("telapi.channel_id", "4915112345678"), attribute.String("path", "/webhooks/llm/call-4711/"+phone),
		attribute.Slice("mixed", attribute.StringValue(phone)), attribute.Map("nested", attribute.String("password", secret)),
	), trace.WithLinks(trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceState: state}),
		Attributes: []attribute.KeyValue{attribute.String("to", phone)}}))
	span.AddEvent("rang "+phone, trace.WithAttributes(attribute.String("token", secret)))
	span.RecordError(fmt.Errorf("call %s: token=%s", phone, secret))
	span.SetStatus(codes.Error, "lost "+phone)
	tele.Logger.With("caller", phone).WithGroup("call").InfoContext(ctx, "dialled "+phone, "token", secret, "error", errors.New("Bearer "+secret))
	span.End()
}

func TestExportSendsRedactedTracesMetricsAndLogs(t *testing.T) {
	c := startCollector(t)
	tele, log := startTelemetry(t, exportTo(c.URL))
	emitSecrets(t, tele)
	testkit.Must(t, tele.Shutdown(t.Context()))
	for path, wants := range map[string][]string{
		"/v1/traces": {`"call +*********5678"`, `"/ws/session?token=[redacted]"`, `"rang +*********5678"`, `"call +*********5678: token=[redacted]"`,
			`"lost +*********5678"`, `"*********5678"`, `"/webhooks/llm/call-4711/+*********5678"`, `trace_state: "ot=th:8"`},
		"/v1/metrics": {`"telapi_build_info"`, `"go_goroutines"`, `"process_open_fds"`, `"telapi_test_calls_total"`, `"+*********5678"`, `"token=[redacted]"`},
		"/v1/logs":    {`"dialled +*********5678"`, `"req-1"`, `"Bearer [redacted]"`, `trace_id:`},
	} {
		got := strings.ReplaceAll(c.received[path], ":  ", ": ")
		for _, want := range append(wants, `"service.name"`, `"telapi"`, `"service.instance.id"`, `"0.9.20"`) {
			if !strings.Contains(got, want) {
				t.Errorf("%s: missing %s", path, want)
			}
		}
		if strings.Contains(got, secret) || strings.Contains(got, "15112345678") {
			t.Errorf("%s contains a secret or a phone number", path)
		}
		if t.Failed() {
			t.Log(path, got)
		}
	}
	if strings.Contains(log.String(), secret) || strings.Contains(log.String(), "15112345678") {
		t.Errorf("the log contains a secret or a phone number: %s", log)
	}
}

func TestDisabledExportSendsNothing(t *testing.T) {
	c := startCollector(t)
	tele, log := startTelemetry(t, config.Config{OTLPEndpoint: c.URL})
	emitSecrets(t, tele)
	if err := tele.Shutdown(t.Context()); err != nil || c.requests != 0 || strings.Contains(log.String(), "OTEL") {
		t.Errorf("the collector received %d requests (shutdown error %v), want 0; log: %s", c.requests, err, log)
	}
}

func TestMissingCollectorIsLoggedOnce(t *testing.T) {
	tele, log := startTelemetry(t, config.Config{OTelEnabled: true})
	emitSecrets(t, tele)
	tele.Logger.Info("more")
	if err := tele.Shutdown(t.Context()); err != nil || strings.Count(log.String(), "OTEL_EXPORTER_OTLP_ENDPOINT") != 1 || !strings.Contains(log.String(), `"level":"INFO"`) {
		t.Errorf("shutdown error %v, want one INFO line about OTEL_EXPORTER_OTLP_ENDPOINT; log: %s", err, log)
	}
}

func TestUnreachableCollectorDoesNotBlock(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
	t.Setenv("OTEL_BLRP_SCHEDULE_DELAY", "5")
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "50")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	_ = l.Close() // the port is closed now
	tele, log := startTelemetry(t, exportTo("http://"+l.Addr().String()))
	for range 10_000 { // more than the queues hold
		ctx, span := tele.TracerProvider.Tracer("test").Start(t.Context(), "work")
		tele.Logger.DebugContext(ctx, "work")
		span.End()
	}
	tele.Logger.Info("work done")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_ = tele.Shutdown(ctx) // fails, because the flush fails
	if n := strings.Count(log.String(), "\n"); n > 5 {
		t.Errorf("%d log lines, want at most 5: %s", n, log)
	}
}

func TestSDKMessagesAreLoggedWithoutSecrets(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://u:"+secret+"@host%zz")
	_, log := startTelemetry(t, exportTo(startCollector(t).URL))
	if !strings.Contains(log.String(), "parse url") || strings.Contains(log.String(), secret) {
		t.Errorf("log: %s\nwant \"parse url\" without the secret", log)
	}
}

func TestFailedExportsAreLoggedEveryFewMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := &pipeline{signal: "traces", console: NewLogger(config.Config{}, &log), ended: t.Context()}
		for range 100 { // over 16 minutes
			err := p.send(t.Context(), func(context.Context) error { return errors.New("refused, token=" + secret) })
			testkit.Must(t, err)
			time.Sleep(10 * time.Second)
		}
		if n := strings.Count(log.String(), "\n"); n != 4 {
			t.Errorf("%d reports in 16 minutes, want 4: %s", n, log.String())
		}
		if !strings.Contains(log.String(), `"failures":30`) || strings.Contains(log.String(), secret) {
			t.Errorf("log: %s\nwant \"failures\":30 without the secret", log.String())
		}
	})
}

func TestShutdownCancelsRunningExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended, end := context.WithCancel(t.Context())
		p := &pipeline{signal: "logs", console: slog.New(slog.DiscardHandler), ended: ended}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = p.send(context.Background(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		}()
		synctest.Wait()
		end()
		<-done
	})
}

func TestLogLevelAppliesToLogAndExport(t *testing.T) {
	levels := []string{"debug", "info", "warn", "error"}
	for minimum, level := range levels {
		c := startCollector(t)
		cfg := exportTo(c.URL)
		cfg.LogLevel = level
		tele, log := startTelemetry(t, cfg)
		log.Reset()
		tele.Logger.Debug("level debug")
		tele.Logger.Info("level info")
		tele.Logger.Warn("level warn")
		tele.Logger.Error("level error")
		testkit.Must(t, tele.Shutdown(t.Context()))
		for severity, logged := range levels {
			for where, text := range map[string]string{"log": log.String(), "collector": c.received["/v1/logs"]} {
				testkit.Equal(t, fmt.Sprintf("LOG_LEVEL=%s: %s message in the %s", level, logged, where), strings.Contains(text, "level "+logged), severity >= minimum)
			}
		}
	}
	var log bytes.Buffer
	if NewLogger(config.Config{LogLevel: "nonsense"}, &log).Enabled(t.Context(), slog.LevelDebug) {
		t.Error("unknown level enables debug")
	}
}

func TestUnmaskedDigitsOfPhoneNumbers(t *testing.T) {
	for digits, want := range map[int]string{0: "+*************", 4: "+*********5678", 15: phone} {
		var log bytes.Buffer
		NewLogger(config.Config{MSISDNUnmaskedDigits: digits}, &log).Info("call from "+phone, "to", phone)
		if strings.Count(log.String(), want+`"`) != 2 {
			t.Errorf("%d unmasked digits: logged %s, want %s twice", digits, log.String(), want)
		}
	}
}

type (
	named       string
	valuer      struct{ v any }
	stringer    struct{ s string }
	panicsOnNil struct{ s string }
)

func (v valuer) LogValue() slog.Value { return slog.AnyValue(v.v) }
func (s stringer) String() string     { return s.s }
func (b *panicsOnNil) Error() string  { return b.s }

func TestLogAttributesAreRedacted(t *testing.T) {
	unredacted := phone + " token=" + secret
	for name, attr := range map[string]slog.Attr{
		"string":         slog.String("x", unredacted),
		"secret name":    slog.String("X-API-Key", "short"),
		"secret number":  slog.Int("password", 1234),
		"secret group":   slog.Group("cookie", "a", "short"),
		"phone number":   slog.Int64("msisdn", 4915112345678),
		"phone unsigned": slog.Uint64("caller", 4915112345678),
		"error":          slog.Any("error", errors.New(unredacted)),
		"wrapped error":  slog.Any("error", fmt.Errorf("a: %w", errors.New(unredacted))),
		"stringer":       slog.Any("x", stringer{unredacted}),
		"bytes":          slog.Any("x", []byte(unredacted)),
		"strings":        slog.Any("x", []string{unredacted}),
		"named string":   slog.Any("x", named(unredacted)),
		"pointer":        slog.Any("x", &struct{ S string }{unredacted}),
		"struct":         slog.Any("x", struct{ Password string }{"short words"}),
		"map":            slog.Any("x", map[string]any{"apiKey": "short", "n": []any{unredacted}}),
		"header":         slog.Any("x", http.Header{"Token": {"short"}}),
		"unsupported type": slog.Any("x", struct {
			C     chan int
			Token string
		}{Token: "short"}),
		"group":             slog.Group("g", slog.Group("h", "x", unredacted, "token", "short")),
		"valuer":            slog.Any("x", valuer{unredacted}),
		"valuer of valuer":  slog.Any("x", valuer{valuer{errors.New(unredacted)}}),
		"valuer of a group": slog.Any("x", valuer{slog.GroupValue(slog.String("token", "short"))}),
		"redacted type":     slog.Any("x", redact.Secret("short")),
		"nil error":         slog.Any("x", (*panicsOnNil)(nil)),
	} {
		for method, emit := range map[string]func(*slog.Logger){
			"record":              func(l *slog.Logger) { l.Info(unredacted, attr) },
			"With":                func(l *slog.Logger) { l.With(attr).Info(unredacted) },
			"WithGroup":           func(l *slog.Logger) { l.WithGroup("g").Info(unredacted, attr) },
			"With in a WithGroup": func(l *slog.Logger) { l.WithGroup("g").With(attr).WithGroup("h").Info(unredacted, attr) },
		} {
			for _, format := range []string{"json", "text"} {
				var log bytes.Buffer
				emit(NewLogger(config.Config{LogFormat: format, MSISDNUnmaskedDigits: 4}, &log))
				for _, leak := range []string{secret, "15112345678", "short", "1234,", "1234}", "=1234"} {
					if strings.Contains(log.String(), leak) {
						t.Errorf("%s with %s as %s: the log contains %q: %s", name, method, format, leak, log.String())
					}
				}
			}
		}
	}
}

func TestHarmlessAttributesAreUnchanged(t *testing.T) {
	var log bytes.Buffer
	NewLogger(config.Config{}, &log).Info("listening", "port", 3001, "took", 2*time.Second, "ok", true, "has_token", true, "ratio", 0.5,
		"bytes", uint64(12345678901), "at", time.Unix(0, 0).UTC(), "n", named("x"), "list", []string{"a"}, "status", http.StatusOK, "nil", nil,
		"kind", slog.KindInt64, "token", "", "error", fmt.Errorf("open: %w", io.EOF), "map", map[string]int{"b": 2, "a": 1})
	var got map[string]any
	testkit.Must(t, json.Unmarshal(log.Bytes(), &got))
	delete(got, "time")
	if want := map[string]any{"level": "INFO", "msg": "listening", "port": 3001.0, "took": "2s", "ok": true, "has_token": true, "ratio": 0.5,
		"bytes": 12345678901.0, "at": "1970-01-01T00:00:00Z", "n": "x", "list": []any{"a"}, "status": 200.0, "nil": nil, "kind": "Int64", "token": "",
		"error": "open: EOF", "map": `{"a":1,"b":2}`}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("logged %v\nwant   %v", got, want)
	}
}

func TestContextIDsAreLogged(t *testing.T) {
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{0xab}, SpanID: trace.SpanID{0xcd}})
	ctx := trace.ContextWithSpanContext(httpserve.WithRequestID(t.Context(), "req-1"), span)
	var log bytes.Buffer
	NewLogger(config.Config{}, &log).With("a", 1).InfoContext(ctx, "hello", "b", 2)
	var got map[string]any
	testkit.Must(t, json.Unmarshal(log.Bytes(), &got))
	if got["request_id"] != "req-1" || got["trace_id"] != span.TraceID().String() || got["span_id"] != span.SpanID().String() || got["a"] != 1.0 || got["b"] != 2.0 {
		t.Errorf("log: %s\nwant the request, trace and span IDs and the attributes a and b", log.String())
	}
}

func TestAutoFormatWithoutTerminalIsJSON(t *testing.T) {
	for format, wantJSON := range map[string]bool{"auto": true, "json": true, "text": false} {
		var log bytes.Buffer
		NewLogger(config.Config{LogFormat: format}, &log).Info("hello")
		if json.Valid(log.Bytes()) != wantJSON || strings.Contains(log.String(), "\x1b") {
			t.Errorf("format %s: logged %q, want JSON: %v, without colors", format, log.String(), wantJSON)
		}
	}
}

func TestOnlySignalsWithEndpointAreExported(t *testing.T) {
	c := startCollector(t)
	for path, cfg := range map[string]config.Config{
		"/v1/traces":  {OTLPTraces: c.URL + "/v1/traces"},
		"/v1/metrics": {OTLPMetrics: c.URL + "/v1/metrics"},
		"/v1/logs":    {OTLPLogs: c.URL + "/v1/logs"},
	} {
		clear(c.received)
		cfg.OTelEnabled = true
		tele, log := startTelemetry(t, cfg)
		emitSecrets(t, tele)
		if err := tele.Shutdown(t.Context()); err != nil || len(c.received) != 1 || c.received[path] == "" {
			t.Errorf("received requests for %d paths (shutdown error %v), want only %s; log: %s", len(c.received), err, path, log)
		}
	}
}
