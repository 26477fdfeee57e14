package fault

import "net/http"

// Code is the stable, machine-readable name of a refusal.
type Code string

// The codes of the service. Their meaning never changes once released.
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
	UpgradeRequired    Code = "UPGRADE_REQUIRED"
	RateLimitExceeded  Code = "RATE_LIMIT_EXCEEDED"
	Internal           Code = "INTERNAL_ERROR"
	WebRTCDisabled     Code = "WEBRTC_DISABLED"
	ServiceUnavailable Code = "SERVICE_UNAVAILABLE"
	StorageFull        Code = "INSUFFICIENT_STORAGE"
)

// Entry documents one code: the status it travels with, what causes it and
// what the caller should do.
type Entry struct {
	Code   Code
	Status int
	Cause  string
	Fix    string
}

// Catalogue lists every code that the API server or the media service answers with.
var Catalogue = []Entry{
	{Validation, http.StatusBadRequest, "A value is missing, of the wrong type or out of its bounds.", "Read details: one entry per issue, with the place and what is allowed."},
	{MalformedJSON, http.StatusBadRequest, "The body is not exactly one JSON value: broken syntax, duplicate keys, invalid UTF-8 or absurd nesting.", "Send well-formed JSON."},
	{Unauthorized, http.StatusUnauthorized, "No credential, or one that is unknown, expired, revoked or wrongly signed.", "Send a valid X-API-Key, or a console JWT signed with the shared JWT_SECRET."},
	{CallbackToken, http.StatusUnauthorized, "The callback token is missing, unknown, expired, of another conversation, kind or work item, or came in the query alone.", "Send the token of this very work item, raw, in the header token. Do not retry with the same one."},
	{Forbidden, http.StatusForbidden, "The credential is good but lacks the scope of this operation.", "Use a key with the scope that details.requiredScope names."},
	{OriginNotAllowed, http.StatusForbidden, "The page's origin is not among those the endpoint allows.", "Add the origin to the endpoint, or open the socket from an allowed page."},
	{NotFound, http.StatusNotFound, "No such route, or no such resource in your team.", "Check the path and the id."},
	{MethodNotAllowed, http.StatusMethodNotAllowed, "The path exists, but not with this method.", "Use a method that the Allow header lists."},
	{SessionInUse, http.StatusConflict, "Another connection of the session is alive and its policy is reject.", "Close it, or name it by connectionId to take its place."},
	{Idempotency, http.StatusConflict, "The Idempotency-Key was used with another body.", "Use a new key for a new request."},
	{CallbackConsumed, http.StatusConflict, "The work item was answered before, or cancelled; details say which.", "With details.duplicate true all is well: the same body was taken the first time. Do not send another."},
	{PathOccupied, http.StatusConflict, "In the media service's folder something lies in the object's place that it did not put there, a link or a folder; it is left alone.", "Remove it on that host, or put the object under another path."},
	{ConversationEnded, http.StatusGone, "The conversation has ended.", "Drop the result."},
	{SessionEnded, http.StatusGone, "The session has ended, was deleted or is over its time.", "Ask for a new token."},
	{LengthRequired, http.StatusLengthRequired, "An upload to the media service does not say how long it is.", "Send Content-Length."},
	{PreconditionFailed, http.StatusPreconditionFailed, "The audio is not the one that If-Match, If-None-Match or If-Unmodified-Since asks for.", "Read it again, then decide."},
	{PayloadTooLarge, http.StatusRequestEntityTooLarge, "The body is larger than the route takes.", "Send less."},
	{UnsupportedMedia, http.StatusUnsupportedMediaType, "The body is not declared as JSON.", "Send Content-Type: application/json."},
	{RangeUnsatisfiable, http.StatusRequestedRangeNotSatisfiable, "No part of the object in the media service lies in the range asked for.", "Ask for a range within its length, which Content-Range tells."},
	{UpgradeRequired, http.StatusUpgradeRequired, "The token is good, but the request does not ask for a WebSocket.", "Open a WebSocket."},
	{RateLimitExceeded, http.StatusTooManyRequests, "An IP tier or the team's daily quota is used up; details say which.", "Wait for Retry-After seconds."},
	{Internal, http.StatusInternalServerError, "A fault of ours.", "Report it with the request id."},
	{WebRTCDisabled, http.StatusServiceUnavailable, "WebRTC is switched off in this deployment.", "Ask for mode audio or chat."},
	{ServiceUnavailable, http.StatusServiceUnavailable, "The service is draining, or a store it needs is away.", "Try again after Retry-After seconds."},
	{StorageFull, http.StatusInsufficientStorage, "The media service has no room for the object; nothing of it was kept.", "Make room, or set MEDIA_MAX_BYTES so that the service makes it by itself."},
}

// Status is the HTTP status a code travels with.
func (c Code) Status() int {
	for _, e := range Catalogue {
		if e.Code == c {
			return e.Status
		}
	}
	return http.StatusInternalServerError
}
