// Package fault provides the error type that all layers share. It has a stable code
// for programs, a message and details for clients, and a cause for the log.
//
// Domain code returns an *Error if the caller made a mistake or a dependency is
// unavailable. Any other error is answered as INTERNAL_ERROR without its text.
package fault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// retryAfter is the delay after which clients should retry if a dependency is
// unavailable.
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
	changed := *e
	changed.Details = details
	return &changed
}

// WithCause returns a copy of e with a cause.
func (e *Error) WithCause(cause error) *Error {
	changed := *e
	changed.Cause = cause
	return &changed
}

// WithRetryAfter returns a copy of e with the delay after which to retry.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	changed := *e
	changed.RetryAfter = d
	return &changed
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

// Reason returns the innermost cause of an error, which is more useful to operators
// than the names of the operations that failed. If an error wraps several, the last is the cause.
func Reason(err error) error {
	for {
		switch e := err.(type) { //nolint:errorlint // the loop unwraps
		case interface{ Unwrap() error }:
			if e.Unwrap() == nil {
				return err
			}
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			list := e.Unwrap()
			err = list[len(list)-1]
		default:
			if errors.Is(err, context.DeadlineExceeded) {
				return errors.New("timed out")
			}
			return err
		}
	}
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

// Code identifies an error for programs.
type Code string

// Error codes. They are part of the API and never change their meaning.
const (
	Validation         Code = "VALIDATION_ERROR"
	MalformedJSON      Code = "MALFORMED_JSON"
	Unauthorized       Code = "UNAUTHORIZED"
	CallbackToken      Code = "CALLBACK_TOKEN_INVALID"
	Forbidden          Code = "FORBIDDEN"
	OriginNotAllowed   Code = "ORIGIN_NOT_ALLOWED"
	NotFound           Code = "NOT_FOUND"
	MethodNotAllowed   Code = "METHOD_NOT_ALLOWED"
	SessionInUse       Code = "SESSION_IN_USE"
	Idempotency        Code = "IDEMPOTENCY_CONFLICT"
	CallbackConsumed   Code = "CALLBACK_CONSUMED"
	PathOccupied       Code = "PATH_OCCUPIED"
	ConversationEnded  Code = "CONVERSATION_ENDED"
	SessionEnded       Code = "SESSION_ENDED"
	LengthRequired     Code = "LENGTH_REQUIRED"
	PreconditionFailed Code = "PRECONDITION_FAILED"
	PayloadTooLarge    Code = "PAYLOAD_TOO_LARGE"
	UnsupportedMedia   Code = "UNSUPPORTED_MEDIA_TYPE"
	RangeUnsatisfiable Code = "RANGE_NOT_SATISFIABLE"
	ExpectationFailed  Code = "EXPECTATION_FAILED"
	UpgradeRequired    Code = "UPGRADE_REQUIRED"
	RateLimitExceeded  Code = "RATE_LIMIT_EXCEEDED"
	HeaderTooLarge     Code = "HEADER_TOO_LARGE"
	Internal           Code = "INTERNAL_ERROR"
	NotImplemented     Code = "NOT_IMPLEMENTED"
	WebRTCDisabled     Code = "WEBRTC_DISABLED"
	ServiceUnavailable Code = "SERVICE_UNAVAILABLE"
	HTTPVersion        Code = "HTTP_VERSION_NOT_SUPPORTED"
	StorageFull        Code = "INSUFFICIENT_STORAGE"
)

// CodeInfo documents a code.
type CodeInfo struct {
	Code   Code
	Status int // HTTP status
	Cause  string
	Fix    string // what the caller should do
}

// Catalogue lists all codes of the API server and the media service.
var Catalogue = []CodeInfo{
	{Validation, http.StatusBadRequest, "A value is missing, has the wrong type or is out of range.", "Fix every issue in details."},
	{MalformedJSON, http.StatusBadRequest, "The body is not one valid JSON value: invalid syntax or UTF-8, duplicate keys, or more than 128 nesting levels.", "Send valid JSON."},
	{Unauthorized, http.StatusUnauthorized, "The credential is missing, unknown, expired or revoked, has an invalid signature, or belongs to a disabled or unknown team.", "Send a valid X-API-Key, or a console JWT signed with JWT_SECRET."},
	{CallbackToken, http.StatusUnauthorized, "The callback token is missing, unknown, expired, sent only in the query, or belongs to another URL.", "Send the token of this work item in the token header, without a prefix. Don't retry with the same token."},
	{Forbidden, http.StatusForbidden, "The credential is valid but lacks the scope of this operation.", "Use a credential with the scope in details.requiredScope."},
	{OriginNotAllowed, http.StatusForbidden, "The endpoint does not allow the page's origin.", "Add the origin to the endpoint, or connect from an allowed page."},
	{NotFound, http.StatusNotFound, "The route does not exist, or your team has no resource with this ID.", "Check the path and the ID."},
	{MethodNotAllowed, http.StatusMethodNotAllowed, "The path does not support this method.", "Use a method from the Allow header."},
	{SessionInUse, http.StatusConflict, "Another connection owns the session and its policy is reject, or another runtime has claimed the channel.", "Close the other connection, or pass its connectionId to replace it. A runtime leaves the channel to the other one."},
	{Idempotency, http.StatusConflict, "The Idempotency-Key was already used with a different body, or the work item exists with another kind or scope.", "Use a new key or ID for a new request."},
	{CallbackConsumed, http.StatusConflict, "The work item was already answered or was cancelled; see details.", "If details.duplicate is true, the same body was already accepted: no action needed. Otherwise discard the result."},
	{PathOccupied, http.StatusConflict, "A link or folder that the media service did not create has the file's path. It was not changed.", "Remove it on the host, or use another path."},
	{ConversationEnded, http.StatusGone, "The conversation has ended.", "Discard the result."},
	{SessionEnded, http.StatusGone, "The session has ended, expired or been deleted.", "Request a new token."},
	{LengthRequired, http.StatusLengthRequired, "An upload to the media service has no Content-Length.", "Send Content-Length."},
	{PreconditionFailed, http.StatusPreconditionFailed, "The resource is not the version in If-Match, If-None-Match or If-Unmodified-Since. Nothing was changed.", "Fetch the current version, then decide."},
	{PayloadTooLarge, http.StatusRequestEntityTooLarge, "The body exceeds the limit of this route.", "Send a smaller body."},
	{UnsupportedMedia, http.StatusUnsupportedMediaType, "The Content-Type is not JSON in UTF-8 (or, for a streamed answer, application/x-ndjson or text/event-stream), or the body is compressed.", "Send one of these types, without Content-Encoding."},
	{RangeUnsatisfiable, http.StatusRequestedRangeNotSatisfiable, "The range is outside of the media service's file.", "Use a range within the length in Content-Range."},
	{ExpectationFailed, http.StatusExpectationFailed, "The Expect header is not 100-continue.", "Remove the Expect header."},
	{UpgradeRequired, http.StatusUpgradeRequired, "The token is valid, but the request is not a WebSocket upgrade.", "Open a WebSocket."},
	{RateLimitExceeded, http.StatusTooManyRequests, "A rate limit of the IP address, the team's daily quota, or its share of the instance is exceeded; see details.", "Retry after Retry-After seconds."},
	{HeaderTooLarge, http.StatusRequestHeaderFieldsTooLarge, "The request header is larger than 32 KiB, or 16 KiB at the media service.", "Send fewer or shorter header fields."},
	{Internal, http.StatusInternalServerError, "Internal error.", "Report it with the request ID."},
	{NotImplemented, http.StatusNotImplemented, "The request has a Transfer-Encoding other than chunked.", "Send Content-Length, or Transfer-Encoding: chunked."},
	{WebRTCDisabled, http.StatusServiceUnavailable, "WebRTC is disabled in this deployment.", "Request mode audio or chat. Retrying does not help."},
	{ServiceUnavailable, http.StatusServiceUnavailable, "The service is shutting down or overloaded, or a store is unavailable.", "Retry after Retry-After seconds."},
	{HTTPVersion, http.StatusHTTPVersionNotSupported, "The request does not use HTTP/1.0 or HTTP/1.1.", "Use HTTP/1.1."},
	{StorageFull, http.StatusInsufficientStorage, "The media service has no space left. Nothing was stored.", "Free disk space, or set MEDIA_MAX_BYTES so that the service deletes old files."},
}

// Status returns the HTTP status of a code, or 500 if it is not in Catalogue.
func (c Code) Status() int {
	for _, info := range Catalogue {
		if info.Code == c {
			return info.Status
		}
	}
	return http.StatusInternalServerError
}
