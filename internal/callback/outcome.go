package callback

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/command"
	"telapi/internal/fault"
)

// errInvalid is the same for every invalid credential, so that guessing tokens
// reveals nothing about existing channels and work items. Callers add a cause for the log.
var errInvalid = fault.New(fault.CallbackToken, "Invalid callback token: it is missing, unknown, expired, or belongs to another channel or work item. Send the token of this work item in the token header, without a prefix.")

var errBackpressure = fault.New(fault.ServiceUnavailable, "The call runtime has not processed earlier entries of this channel yet. Retry after the number of seconds in Retry-After.").WithRetryAfter(2 * time.Second)

var errStale = errors.New("channel was opened again during the callback")

var statusErrors = map[Status]error{
	Invalid:      errInvalid.WithCause(errors.New("unknown or expired token, or one of another channel or work item")),
	Ended:        fault.New(fault.ConversationEnded, "The conversation has ended. Discard the result."),
	Consumed:     fault.New(fault.CallbackConsumed, "This work item was already answered with a different body. Discard this result.").WithDetails(consumedDetails{}),
	Streaming:    fault.New(fault.CallbackConsumed, "A streamed answer to this work item has begun. Send the same stream again, or discard this result.").WithDetails(consumedDetails{State: string(Streaming)}),
	Cancelled:    fault.New(fault.CallbackConsumed, "This work item was cancelled. Discard the result.").WithDetails(consumedDetails{State: string(Cancelled)}),
	Backpressure: errBackpressure,
	Stale:        errStale,
	Missing:      fault.Unavailable("The key-value store", errors.New("parts of a streamed answer are missing")),
}

type consumedDetails struct {
	Duplicate bool     `json:"duplicate"`
	State     string   `json:"state,omitzero"`
	Receipt   *Receipt `json:"receipt,omitzero"`
}

// err returns the error for a rejected delivery, or nil if it was accepted.
func (r DeliverResult) err() error {
	if r.Accepted() {
		return nil
	}
	if r.Status == Duplicate {
		var receipt Receipt
		if err := json.Unmarshal(r.Receipt, &receipt); err != nil {
			return fmt.Errorf("decode receipt: %w", err)
		}
		receipt.setStatus(r.WaitsFor)
		return fault.New(fault.CallbackConsumed, "Duplicate callback: already accepted. See details.receipt. No action needed.").
			WithDetails(consumedDetails{Duplicate: true, Receipt: &receipt})
	}
	if err, known := statusErrors[r.Status]; known {
		return err
	}
	return fmt.Errorf("deliver callback: unknown status %q", r.Status)
}

// Outcomes of telapi_callbacks_total that are not error codes.
const (
	outcomeBackpressure = "BACKPRESSURE" // answered with SERVICE_UNAVAILABLE
	outcomeGone         = "gone"         // the provider closed the connection
)

type metrics struct {
	callbacks *prometheus.CounterVec
	commands  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	parts     *prometheus.CounterVec
}

func newMetrics(registry prometheus.Registerer, oldestParked, openStreams func() float64) metrics {
	auto := promauto.With(registry)
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "telapi_callback_oldest_parked_seconds",
		Help: "Age of the oldest callback that this instance has parked, or 0. Use the maximum of all instances."},
		oldestParked)
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "telapi_callback_streams", Help: "Streamed answers that are arriving at this instance."}, openStreams)
	m := metrics{
		callbacks: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_callbacks_total", Help: "Callbacks by kind and outcome: accepted, parked, the error code, BACKPRESSURE (full backlog) or gone (the provider disconnected)."},
			[]string{"kind", "outcome"}),
		commands: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_commands_total", Help: "Commands in accepted callbacks by type and decision."},
			[]string{"type", "decision"}),
		seconds: auto.NewHistogramVec(prometheus.HistogramOpts{
			Name: "telapi_callback_seconds", Help: "Time from a callback's header, or a stream's last line, until its entries are routed or parked.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}},
			[]string{"kind"}),
		parts: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_callback_parts_total", Help: "Parts of streamed answers that were delivered, by kind."},
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
			label = "other" // providers must not be able to create metrics
		}
		m.commands.WithLabelValues(label, c.Decision).Inc()
	}
}
