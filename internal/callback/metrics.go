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

// Outcomes of telapi_callbacks_total that are not error codes.
const (
	outcomeBackpressure = "BACKPRESSURE" // answered with SERVICE_UNAVAILABLE
	outcomeGone         = "gone"         // the provider closed the connection
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
		Help: "Age of the oldest callback that this instance parked and that is still parked; 0 if there is none. Use the maximum over all instances."},
		oldestParked)
	m := metrics{
		callbacks: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_callbacks_total", Help: "Provider callbacks by kind and outcome: accepted, parked, the error code, BACKPRESSURE if the runtime's backlog was full, or gone if the provider closed the connection early."},
			[]string{"kind", "outcome"}),
		commands: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_commands_total", Help: "Commands in accepted callbacks by type and decision."},
			[]string{"type", "decision"}),
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_callback_seconds", Help: "Time from receiving a callback's header until its entries are routed or parked.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}},
			[]string{"kind"}),
	}
	for _, kind := range wire.WorkItemKinds { // start at 0, so that alerts see the first error as an increase
		m.callbacks.WithLabelValues(string(kind), string(fault.ServiceUnavailable))
		m.callbacks.WithLabelValues(string(kind), outcomeBackpressure)
	}
	return m
}

func (m metrics) countError(kind wire.WorkItemKind, err error) {
	outcome := string(fault.From(err).Code)
	switch {
	case errors.Is(err, errBackpressure):
		outcome = outcomeBackpressure
	case errors.Is(err, context.Canceled):
		outcome = outcomeGone
	}
	m.callbacks.WithLabelValues(string(kind), outcome).Inc()
}

func (m metrics) countAccepted(kind wire.WorkItemKind, receipt Receipt, took time.Duration) {
	m.callbacks.WithLabelValues(string(kind), receipt.Status).Inc()
	m.seconds.WithLabelValues(string(kind)).Observe(took.Seconds())
	for _, c := range receipt.Commands {
		label := c.Type
		if !command.Known(label) {
			label = "other" // providers must not be able to create labels
		}
		m.commands.WithLabelValues(label, c.Decision).Inc()
	}
}
