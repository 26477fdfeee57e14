package testkit

import (
	"errors"
	"net"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Must ends the test if there is an error.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// MetricValue returns the value of a counter or gauge.
func MetricValue(t testing.TB, m prometheus.Metric) float64 {
	t.Helper()
	var got dto.Metric
	Must(t, m.Write(&got))
	return got.GetCounter().GetValue() + got.GetGauge().GetValue()
}

// Metrics returns the values of the counters and gauges of a registry, by name and label values.
func Metrics(t testing.TB, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	Must(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

// PipeListener accepts in-memory connections, which follow the clock of synctest.
type PipeListener chan net.Conn

// Accept implements net.Listener. It ends when the channel is closed.
func (l PipeListener) Accept() (net.Conn, error) {
	conn, open := <-l
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close implements net.Listener.
func (l PipeListener) Close() error { return nil }

// Addr implements net.Listener.
func (l PipeListener) Addr() net.Addr { return &net.TCPAddr{} }
