package fault

// Envelope is the ErrorResponse that every refusal has on the wire.
type Envelope struct {
	Error struct {
		Code      Code   `json:"code"`
		Message   string `json:"message"`
		Details   any    `json:"details,omitempty"`
		RequestID string `json:"requestId,omitempty"`
	} `json:"error"`
}

// Envelope is what a client gets to see of e.
func (e *Error) Envelope(requestID string) (v Envelope) {
	v.Error.Code, v.Error.Message, v.Error.Details, v.Error.RequestID = e.Code, e.Message, e.Details, requestID
	return v
}
