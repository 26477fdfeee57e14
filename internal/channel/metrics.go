package channel

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	frames     *prometheus.CounterVec
	refused    *prometheus.CounterVec
	replayed   prometheus.Counter
	recoveries *prometheus.CounterVec
	ackSeconds prometheus.Histogram
}

func newMetrics(registry prometheus.Registerer) metrics {
	auto := promauto.With(registry)
	m := metrics{
		frames: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_frames_total", Help: "Frames sent and received on sockets, by type and direction."}, []string{"type", "direction"}),
		refused: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_frames_refused_total", Help: "Frames from browsers that were rejected, by error code."}, []string{"code"}),
		replayed: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_messages_replayed_total", Help: "Messages replayed to browsers after a reconnect or a gap."}),
		recoveries: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_recoveries_total", Help: "Attempts to resume from a cursor, by outcome."}, []string{"outcome"}),
		ackSeconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "telapi_frame_ack_seconds", Help: "Time from receiving a frame to acknowledging it.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}}),
	}
	// Start at 0 so that an alert sees the first one as an increase.
	m.refused.WithLabelValues(string(codeBackpressure))
	for _, outcome := range []string{"recovered", "failed"} {
		m.recoveries.WithLabelValues(outcome)
	}
	return m
}

// recovered counts an attempt to resume.
func (m metrics) recovered(ok bool) {
	outcome := "failed"
	if ok {
		outcome = "recovered"
	}
	m.recoveries.WithLabelValues(outcome).Inc()
}
