package callback

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/fault"
)

// What a provider can be told. One text for every bad credential: whoever
// guesses learns nothing about what there is.
var (
	errInvalid  = fault.New(fault.CallbackToken, "This callback token is missing, unknown, over its time or not for this conversation and work item. Send the one that came with the work, raw, in the header token.")
	errEnded    = fault.New(fault.ConversationEnded, "The conversation has ended. Drop the result.")
	errRepeated = fault.New(fault.CallbackConsumed, "This very result was taken before, as the receipt in details says. Nothing is left to do.")
	errConsumed = fault.New(fault.CallbackConsumed, "This work item was answered before, with another result. Drop this one.")
	errRecalled = fault.New(fault.CallbackConsumed, "This work item was cancelled. Drop the result.")
	errBacklog  = fault.New(fault.ServiceUnavailable, "The conversation is too far behind to take more. Try again in a moment.").WithRetryAfter(2 * time.Second)

	errStale = errors.New("the channel is not the one that was decided for")
)

// reuse are the details of CALLBACK_CONSUMED.
type reuse struct {
	Duplicate bool           `json:"duplicate"`
	State     string         `json:"state,omitzero"`
	Receipt   jsontext.Value `json:"receipt,omitzero"`
}

// judge turns the store's verdict into the status of an answer, or a refusal.
func judge(o DeliverResult) (status string, err error) {
	switch o.Status {
	case Routed:
		return "accepted", nil
	case Parked:
		return "parked", nil
	case Invalid:
		return "", errInvalid
	case Ended:
		return "", errEnded
	case Consumed:
		return "", errConsumed.WithDetails(reuse{})
	case Duplicate:
		return "", errRepeated.WithDetails(reuse{Duplicate: true, Receipt: o.Receipt})
	case Cancelled:
		return "", errRecalled.WithDetails(reuse{State: string(Cancelled)})
	case Backpressure:
		return "", errBacklog
	case Stale:
		return "", errStale
	default:
		return "", fmt.Errorf("the store says %q of a callback", o.Status)
	}
}
