package channel

import (
	"maps"
	"slices"
)

// CloseCode tells a browser why its socket ended and whether to come back:
// 1012 and 4000–4499 mean "reconnect", 1007, 1008, 1009 and 4500–4999 "do not".
type CloseCode int

// The codes that a socket is closed with.
const (
	CloseNormal      CloseCode = 1000
	CloseInvalidText CloseCode = 1007 // not UTF-8
	CloseTooBig      CloseCode = 1009 // a frame over the limit
	CloseRestart     CloseCode = 1012 // the instance drains; another one is there

	CloseSlowReader       CloseCode = 4001 // the reader did not keep up
	CloseNoPong           CloseCode = 4002 // nothing was heard in time
	CloseHistoryLost      CloseCode = 4003 // history no longer reaches back to this socket
	CloseRateLimited      CloseCode = 4004 // more frames than allowed
	CloseStoreUnavailable CloseCode = 4005 // a frame could not be taken; resend it

	CloseBadToken      CloseCode = 4500
	CloseInvalidFrames CloseCode = 4501 // ten bad frames in a row
	CloseReplaced      CloseCode = 4502 // another connection took the session over
	CloseEnded         CloseCode = 4503 // ended or revoked
	CloseExpired       CloseCode = 4504 // the session's time is over
)

// reasons are what a person reads in the close frame.
var reasons = map[CloseCode]string{
	CloseNormal:           "closed",
	CloseInvalidText:      "a text frame was not UTF-8",
	CloseTooBig:           "a frame was too big",
	CloseRestart:          "the service restarts; reconnect",
	CloseSlowReader:       "messages were not read in time; reconnect and resume",
	CloseNoPong:           "nothing was heard in time; reconnect and resume",
	CloseHistoryLost:      "messages were missed and cannot be replayed; reconnect",
	CloseRateLimited:      "too many frames a second; slow down",
	CloseStoreUnavailable: "the message store is away; reconnect and resend",
	CloseBadToken:         "the token is not valid",
	CloseInvalidFrames:    "too many bad frames in a row",
	CloseReplaced:         "another connection took the session over",
	CloseEnded:            "the session has ended",
	CloseExpired:          "the session's time is over",
}

// Reason is the text that travels with a code.
func (c CloseCode) Reason() string { return reasons[c] }

// CloseCodes lists every code in order, for documentation.
func CloseCodes() []CloseCode { return slices.Sorted(maps.Keys(reasons)) }
