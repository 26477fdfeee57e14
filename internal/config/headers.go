package config

import (
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"

	"telapi/internal/redact"
)

// judgeCollectorHeaders looks at what OpenTelemetry's libraries read by
// themselves: they print a header that they do not understand, with the
// credential in it.
func (l *loader) judgeCollectorHeaders() {
	for _, signal := range []string{"", "TRACES_", "METRICS_", "LOGS_"} {
		name := "OTEL_EXPORTER_OTLP_" + signal + "HEADERS"
		if value := l.env[name]; value != "" && !headerList(value) {
			l.problem(name, redact.Placeholder, "allowed: name=value, several separated by commas, special characters in a value percent-encoded")
		}
	}
}

func headerList(value string) bool {
	for header := range strings.SplitSeq(value, ",") {
		name, escaped, found := strings.Cut(header, "=")
		value, err := url.PathUnescape(escaped)
		good := found && err == nil && httpguts.ValidHeaderFieldName(strings.TrimSpace(name)) && httpguts.ValidHeaderFieldValue(strings.TrimSpace(value))
		if !good && strings.TrimSpace(header) != "" {
			return false
		}
	}
	return true
}
