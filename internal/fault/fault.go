// Package fault owns the one error type that crosses floors: a stable code for
// machines, a message for people, details for programs, and a cause for the log.
//
// Domain code returns *Error where the caller did something wrong or a
// dependency is away; everything else stays an ordinary wrapped error and is
// shown to the outside as INTERNAL_ERROR, without its text.
package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Error is a refusal or failure that a client may see. Code, Message and
// Details are public; Cause is for the log alone.
type Error struct {
	Code       Code
	Message    string
	Details    any
	RetryAfter time.Duration
	Cause      error
}

// New returns an error with a public message. The message should say what to do.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithDetails returns a copy of e that carries public details.
func (e *Error) WithDetails(details any) *Error {
	c := *e
	c.Details = details
	return &c
}

// WithCause returns a copy of e that carries a cause, which is logged and never shown.
func (e *Error) WithCause(cause error) *Error {
	c := *e
	c.Cause = cause
	return &c
}

// WithRetryAfter returns a copy of e that tells the client when to try again.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

func (e *Error) Unwrap() error { return e.Cause }

// From finds the *Error in err's chain. Work that ran out of its time becomes
// SERVICE_UNAVAILABLE, since a dependency hangs; any other error becomes
// INTERNAL_ERROR. Both have err as their cause, so nothing internal reaches a client.
func From(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return New(ServiceUnavailable, "This took longer than it may. Try again in a moment.").
			WithRetryAfter(retryAfter).WithCause(err)
	}
	return New(Internal, "Something went wrong on our side. Quote the request id when you report it.").WithCause(err)
}

// Is tells whether err carries the given code.
func Is(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// retryAfter is how soon a client may try again what was away or slow.
const retryAfter = 2 * time.Second

// Unavailable reports a dependency that is away for now.
func Unavailable(what string, cause error) *Error {
	return New(ServiceUnavailable, "%s is not reachable right now. Try again in a moment.", what).
		WithRetryAfter(retryAfter).WithCause(cause)
}
