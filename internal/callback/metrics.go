package callback

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
)

// Outcomes that are no codes, for those who watch.
const (
	// behind: the runtime is too slow. Providers are told the same as when the
	// store is away.
	behind = "BACKPRESSURE"
	gone   = "gone" // nobody is left to be told
)

type metrics struct {
	callbacks *prometheus.CounterVec
	commands  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
}

func newMetrics(registry prometheus.Registerer, oldestParked func() float64) metrics {
	auto := promauto.With(registry)
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "telapi_callback_oldest_parked_seconds",
		Help: "Age of the oldest callback that this instance took early and that still waits for its turn; 0 if none does. The maximum over all instances is the oldest of all."},
		oldestParked)
	m := metrics{
		callbacks: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_callbacks_total", Help: "Callbacks of providers, by kind and by what became of them: accepted, parked, or the code of the refusal; BACKPRESSURE where the runtime was too far behind, gone where the provider hung up first."},
			[]string{"kind", "outcome"}),
		commands: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_commands_total", Help: "Commands in callbacks that were taken, by type and decision."},
			[]string{"type", "decision"}),
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_callback_seconds", Help: "Time from a callback's header to its entries being on the stream, or parked.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}},
			[]string{"kind"}),
	}
	for _, kind := range wire.WorkItemKinds { // from 0, so that an alert sees the first one as an increase
		m.callbacks.WithLabelValues(string(kind), string(fault.ServiceUnavailable))
		m.callbacks.WithLabelValues(string(kind), behind)
	}
	return m
}

func (m metrics) count(kind wire.WorkItemKind, answer Answer, err error, took time.Duration) {
	if err != nil {
		outcome := string(fault.From(err).Code)
		switch {
		case errors.Is(err, errBacklog):
			outcome = behind
		case errors.Is(err, context.Canceled):
			outcome = gone
		}
		m.callbacks.WithLabelValues(string(kind), outcome).Inc()
		return
	}
	m.callbacks.WithLabelValues(string(kind), answer.Status).Inc()
	m.seconds.WithLabelValues(string(kind)).Observe(took.Seconds())
	for _, c := range answer.Commands {
		label := c.Type
		if !command.Known(label) {
			label = "other" // a provider must not make up labels
		}
		m.commands.WithLabelValues(label, c.Decision).Inc()
	}
}
