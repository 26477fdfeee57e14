package httpapi

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/endpoint"
)

const webhooksPath = "/api/v1/webhooks/"

// webhook takes what a provider of some kind posts back. Its credential is in
// the request alone, so there is no principal; one that fails counts against
// the auth tier like any other.
func (s *Server) webhook(kind wire.WorkItemKind) handler {
	limit := endpoint.PublishedLimits().CallbackBodyBytes
	return func(x *exchange, r *http.Request) error {
		received := s.deps.Now()
		body, unread := readBody(x, r, limit)
		r, end := restartTimeout(x, r)
		defer end()
		request := callback.Request{
			Credential: callback.Credential{
				ChannelID: r.PathValue("channelId"), Kind: kind, WorkItemID: r.PathValue("workItemId"), Digest: digest(callbackToken(r, kind)),
			},
			Body: body, Unread: unread, Trace: callTrace(r), Received: received,
		}
		answer, err := s.deps.Callbacks.Accept(r.Context(), request)
		if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
			span.SetAttributes(
				attribute.String("telapi.channel_id", request.ChannelID),
				attribute.String("telapi.callback_id", answer.CallbackID),
				attribute.String("telapi.call_id", request.Trace.CallID),
				attribute.String("telapi.transaction_id", request.Trace.TransactionID),
			)
		}
		if err != nil {
			return s.countAuthFailure(x, r, err)
		}
		x.WriteBytes(http.StatusAccepted, "application/json", answer.JSON(x.RequestID))
		return nil
	}
}

// callbackToken is the token as it was presented, or nothing. Where the header
// token is sent it alone counts; a query is never looked at, since URLs end up
// in logs along the way.
func callbackToken(r *http.Request, kind wire.WorkItemKind) string {
	values, sent := r.Header["Token"]
	bearer := false
	if !sent && kind != wire.BotItem {
		values, bearer = r.Header["Authorization"], true
	}
	if len(values) != 1 {
		return ""
	}
	scheme, rest, _ := strings.Cut(values[0], " ")
	switch isBearer := strings.EqualFold(scheme, "Bearer"); {
	case isBearer != bearer:
		return ""
	case isBearer:
		return strings.TrimSpace(rest)
	default:
		return values[0]
	}
}

// digest is all that is ever looked up or kept of a token.
func digest(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
