package callback

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
)

// errInvalid is the same for every bad credential, so that guessing tokens
// reveals nothing about existing channels and work items.
var errInvalid = fault.New(fault.CallbackToken, "Invalid callback token: it is missing, unknown, expired, or belongs to another channel or work item. Send the token of this work item in the token header, without a prefix.")

var errBackpressure = fault.New(fault.ServiceUnavailable, "The call runtime has not processed earlier entries of this channel yet. Retry after the number of seconds in Retry-After.").WithRetryAfter(2 * time.Second)

var errStale = errors.New("channel was opened again during the callback")

// statusErrors maps the statuses of rejected deliveries to errors.
var statusErrors = map[Status]error{
	Invalid:      errInvalid,
	Ended:        fault.New(fault.ConversationEnded, "The conversation has ended. Discard the result."),
	Consumed:     fault.New(fault.CallbackConsumed, "This work item was already answered with a different body. Discard this result.").WithDetails(consumedDetails{}),
	Cancelled:    fault.New(fault.CallbackConsumed, "This work item was cancelled. Discard the result.").WithDetails(consumedDetails{State: string(Cancelled)}),
	Backpressure: errBackpressure,
	Stale:        errStale,
}

// consumedDetails are the details of CALLBACK_CONSUMED.
type consumedDetails struct {
	Duplicate bool           `json:"duplicate"`
	State     string         `json:"state,omitzero"`
	Receipt   jsontext.Value `json:"receipt,omitzero"`
}

// err returns the error for a rejected delivery, or nil if it was accepted.
func (r DeliverResult) err() error {
	switch r.Status {
	case Routed, Parked:
		return nil
	case Duplicate:
		return fault.New(fault.CallbackConsumed, "Duplicate callback: already accepted. See details.receipt. No action needed.").
			WithDetails(consumedDetails{Duplicate: true, Receipt: r.Receipt})
	}
	if err, known := statusErrors[r.Status]; known {
		return err
	}
	return fmt.Errorf("deliver callback: unknown status %q", r.Status)
}
