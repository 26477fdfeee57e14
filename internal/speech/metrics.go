package speech

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	syntheses *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	cache     *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer) metrics {
	auto := promauto.With(registry)
	return metrics{
		syntheses: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_speech_syntheses_total", Help: "Synthesis attempts by provider and outcome: ok, refused or failed."},
			[]string{"provider", "outcome"}),
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_speech_synthesis_seconds", Help: "Duration of a synthesis attempt by provider.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}},
			[]string{"provider"}),
		cache: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_speech_cache_total", Help: "Media cache lookups by result: hit, miss, transcoded (from PCM to A-law), bad_blob (missing or damaged) or away (media service unavailable)."},
			[]string{"result"}),
	}
}

func (m metrics) synthesis(provider string, err error, took time.Duration) {
	outcome := "ok"
	switch {
	case errors.Is(err, ErrRejected):
		outcome = "refused"
	case err != nil:
		outcome = "failed"
	}
	m.syntheses.WithLabelValues(provider, outcome).Inc()
	m.seconds.WithLabelValues(provider).Observe(took.Seconds())
}
