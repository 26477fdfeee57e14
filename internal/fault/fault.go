// Package fault provides the error type that all layers share: a stable code
// for programs, a message for people, details and a cause for the log.
//
// Domain code returns an *Error if the caller made a mistake or a dependency is
// unavailable. Any other error is answered as INTERNAL_ERROR without its text.
package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// retryAfter is the delay that clients are advised to wait for a dependency.
const retryAfter = 2 * time.Second

// Error is an error that a client may see. Cause is only logged.
type Error struct {
	Code       Code
	Message    string
	Details    any
	RetryAfter time.Duration
	Cause      error
}

// New returns an error with a public message, which should say what to do.
func New(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Unavailable returns a SERVICE_UNAVAILABLE error for a dependency.
func Unavailable(dependency string, cause error) *Error {
	return New(ServiceUnavailable, "%s is temporarily unavailable. Retry in a few seconds.", dependency).
		WithRetryAfter(retryAfter).WithCause(cause)
}

// WithDetails returns a copy of e with public details.
func (e *Error) WithDetails(details any) *Error {
	c := *e
	c.Details = details
	return &c
}

// WithCause returns a copy of e with a cause.
func (e *Error) WithCause(cause error) *Error {
	c := *e
	c.Cause = cause
	return &c
}

// WithRetryAfter returns a copy of e with the delay after which to retry.
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

// From returns the first *Error in err's chain. If there is none, it returns
// SERVICE_UNAVAILABLE for an exceeded deadline and INTERNAL_ERROR otherwise,
// with err as the cause.
func From(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return New(ServiceUnavailable, "The request timed out. Retry in a few seconds.").
			WithRetryAfter(retryAfter).WithCause(err)
	}
	return New(Internal, "Internal error. Report it with the request ID.").WithCause(err)
}

// Is reports whether the first *Error in err's chain has the given code.
func Is(err error, code Code) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Code == code
}

// Envelope is the JSON body of every error response.
type Envelope struct {
	Error struct {
		Code      Code   `json:"code"`
		Message   string `json:"message"`
		Details   any    `json:"details,omitempty"`
		RequestID string `json:"requestId,omitempty"`
	} `json:"error"`
}

// Envelope returns the public part of e.
func (e *Error) Envelope(requestID string) (v Envelope) {
	v.Error.Code, v.Error.Message, v.Error.Details, v.Error.RequestID = e.Code, e.Message, e.Details, requestID
	return v
}
