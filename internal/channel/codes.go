package channel

import (
	"maps"
	"slices"
)

// CloseCode is the status code of a WebSocket close frame. Clients reconnect
// after 1012 and 4000–4499, and give up after 1007, 1008, 1009 and 4500–4999.
type CloseCode int

// Close codes of a session's socket.
const (
	CloseNormal      CloseCode = 1000
	CloseInvalidText CloseCode = 1007
	CloseTooBig      CloseCode = 1009
	CloseRestart     CloseCode = 1012

	CloseSlowReader       CloseCode = 4001
	CloseNoPong           CloseCode = 4002
	CloseHistoryLost      CloseCode = 4003
	CloseRateLimited      CloseCode = 4004
	CloseStoreUnavailable CloseCode = 4005

	CloseInvalidFrames CloseCode = 4501
	CloseReplaced      CloseCode = 4502
	CloseEnded         CloseCode = 4503 // ended or revoked
	CloseExpired       CloseCode = 4504
)

var reasons = map[CloseCode]string{
	CloseNormal:           "closed",
	CloseInvalidText:      "text frame is not valid UTF-8",
	CloseTooBig:           "frame too large",
	CloseRestart:          "service is restarting; reconnect",
	CloseSlowReader:       "client reads too slowly; reconnect and resume",
	CloseNoPong:           "ping timeout; reconnect and resume",
	CloseHistoryLost:      "missed messages are no longer available; reconnect",
	CloseRateLimited:      "frame rate limit exceeded; reconnect and slow down",
	CloseStoreUnavailable: "message store unavailable; reconnect and resend",
	CloseInvalidFrames:    "too many invalid frames in a row",
	CloseReplaced:         "replaced by another connection",
	CloseEnded:            "session ended",
	CloseExpired:          "session expired",
}

// Reason returns the reason text of the close frame.
func (c CloseCode) Reason() string { return reasons[c] }

// CloseCodes returns all codes in ascending order.
func CloseCodes() []CloseCode { return slices.Sorted(maps.Keys(reasons)) }
