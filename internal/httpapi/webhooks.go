package httpapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"strings"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/ratelimit"
	"telapi/internal/session"
	"telapi/internal/strictjson"
	"telapi/internal/team"
	"telapi/internal/telemetry"
)

// webhook accepts callbacks of one kind. The callback token is the only
// credential, so there is no principal. A failed attempt counts against the auth
// tier.
//
// The order of the checks is: media type, size, presence of a token, body, token.
// Problems of the body are reported only for a valid token. The rest of a large body or of
// a streamed answer is read only if the token is known. Few large bodies are processed at
// a time.
func (s *Server) webhook(kind wire.WorkItemKind) handler {
	return func(x *exchange, r *http.Request) error {
		received := s.deps.Now()
		token := callbackToken(r, kind)
		credential := callback.Credential{
			ChannelID: r.PathValue("channelId"), Kind: kind,
			WorkItemID: cmp.Or(r.PathValue("workItemId"), wire.TokenWorkItem(token)), Digest: digest(token),
		}
		callTrace := callTrace(r)
		mediaType := mediaType(r.Header)
		x.isStreamed = kind != wire.ToolItem && (mediaType == callback.NDJSON || mediaType == callback.EventStream)
		var receipt callback.Receipt
		var err error
		var stream *streamReader
		if x.isStreamed {
			stream = newStreamReader(x, r)
			perDelta := r.URL.Query().Get("split") == splitNone
			receipt, err = s.acceptStream(x, r, stream, callback.StreamRequest{Credential: credential, MediaType: mediaType, PerDelta: perDelta, Trace: callTrace})
		} else {
			receipt, err = s.accept(x, r, callback.Request{Credential: credential, Trace: callTrace, Received: received})
		}
		if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
			span.SetAttributes(
				attribute.String("telapi.channel_id", credential.ChannelID),
				attribute.String("telapi.callback_id", receipt.CallbackID),
				attribute.String("telapi.call_id", callTrace.CallID),
				attribute.String("telapi.transaction_id", callTrace.TransactionID),
			)
		}
		receipt.RequestID = x.RequestID
		respond := func() error { return x.WriteJSON(http.StatusAccepted, &receipt) }
		if err != nil {
			// A client that stops sending its body still gets the answer.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), handlerTimeout)
			defer cancel()
			err = s.countAuthFailure(ctx, x, err)
			respond = func() error { x.Fail(err); return nil }
		}
		if stream != nil {
			return stream.respond(x, respond)
		}
		return respond()
	}
}

// accept reads the whole body of a callback and processes it.
func (s *Server) accept(x *exchange, r *http.Request, request callback.Request) (callback.Receipt, error) {
	body, err := s.readCallback(x, r, request.Credential)
	if err != nil {
		return callback.Receipt{}, err
	}
	request.Body = strictjson.TrimBOM(body)
	ctx, cancel := context.WithTimeout(x.ctx, handlerTimeout)
	defer cancel()
	done, err := s.waitIfLarge(ctx, len(request.Body))
	if err != nil {
		return callback.Receipt{}, s.deps.Callbacks.Reject(ctx, request.Credential, err)
	}
	defer done()
	return s.deps.Callbacks.Accept(ctx, request)
}

// waitIfLarge limits how many large bodies, or lines of streamed answers, are decoded at a time. The
// caller calls done after its work on the body.
func (s *Server) waitIfLarge(ctx context.Context, size int) (done func(), err error) {
	if size <= smallBody {
		return func() {}, nil
	}
	select {
	case s.largeCallbacks <- struct{}{}:
		return func() { <-s.largeCallbacks }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// readCallback reads the body of a callback. It checks the credential first if the
// token is missing or the body is large. Until then, the body counts for the client's address.
func (s *Server) readCallback(x *exchange, r *http.Request, credential callback.Credential) ([]byte, error) {
	x.isCallback, x.holder = true, ratelimit.Client(x.client).String()
	limit := team.DefaultRequestLimits().CallbackBodyBytes
	var credentialErr error
	check := func() error {
		ctx, cancel := context.WithTimeout(x.ctx, handlerTimeout)
		defer cancel()
		x.holder, credentialErr = s.deps.Callbacks.Check(ctx, credential)
		return credentialErr
	}
	accepted := "application/json"
	if credential.Kind != wire.ToolItem {
		accepted += ", application/x-ndjson or text/event-stream"
	}
	err := checkBodyHeader(r, limit, accepted)
	if err == nil && credential.Digest == "" {
		err = check()
	}
	var body []byte
	if err == nil {
		body, err = s.readBody(x, r, limit, check)
	}
	if err == nil || credentialErr != nil {
		return body, err
	}
	// A failed read cancels the context of the request.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), handlerTimeout)
	defer cancel()
	return nil, s.deps.Callbacks.Reject(ctx, credential, err)
}

// callbackToken returns the callback token of a request, or "". The token header
// takes precedence over Authorization. Tokens in the query are ignored, because
// URLs are logged by proxies.
func callbackToken(r *http.Request, kind wire.WorkItemKind) string {
	values, hasToken := r.Header["Token"]
	wantBearer := !hasToken && kind != wire.BotItem
	if wantBearer {
		values = r.Header["Authorization"]
	}
	if len(values) != 1 {
		return ""
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch isBearer := strings.EqualFold(scheme, "Bearer"); {
	case isBearer != wantBearer:
		return ""
	case isBearer:
		return strings.TrimSpace(token)
	}
	return values[0]
}

// digest returns the SHA-256 of a token in hex. Tokens themselves are not stored.
func digest(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// continueTrace returns a context in the caller's trace: the trace in the query of
// the callback URL, on webhooks, or else the one in the traceparent header. If both
// name the same trace, the span of traceparent is the parent. A browser cannot send
// the header with a handshake, so its socket continues the trace of the request that
// created the session.
func (s *Server) continueTrace(ctx context.Context, x *exchange, r *http.Request) context.Context {
	switch {
	case r.Header["Traceparent"] != nil:
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.HeaderCarrier(r.Header))
	case r.URL.Path == session.SocketPath && s.deps.Sessions != nil:
		ctx = telemetry.WithTraceparent(ctx, s.callToken(x, r).Traceparent())
	}
	if r.URL.RawQuery == "" || !strings.HasPrefix(r.URL.Path, wire.WebhooksPath) {
		return ctx
	}
	joined := telemetry.JoinTrace(ctx, queryTrace(r))
	if trace.SpanContextFromContext(joined).TraceID() == trace.SpanContextFromContext(ctx).TraceID() {
		return ctx
	}
	return joined
}

// callTrace returns the trace of a callback's entries: they name the span of this
// request, in the trace of the caller. A trace ID in the query that is not one of
// OpenTelemetry is passed on unchanged.
func callTrace(r *http.Request) (t wire.Trace) {
	if r.URL.RawQuery != "" {
		t = queryTrace(r)
	}
	if own := telemetry.TraceOf(r.Context()); own.TraceID != "" && (t.TraceID == "" || telemetry.SameTraceID(t.TraceID, own.TraceID)) {
		t.TraceID, t.ParentSpanID = own.TraceID, own.ParentSpanID
	}
	if values := r.Header.Values(wire.TransactionHeader); len(values) == 1 && len(values[0]) == len(uuid.Nil.String()) && uuid.Validate(values[0]) == nil {
		t.TransactionID = values[0]
	}
	return t
}

// validTraceParam matches the IDs that are accepted from other systems.
var validTraceParam = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)

// queryTrace returns the trace parameters of the query. Invalid and repeated
// ones are ignored: tracing must not cause a callback to fail.
func queryTrace(r *http.Request) wire.Trace {
	query := r.URL.Query()
	param := func(name string) string {
		if values := query[name]; len(values) == 1 && validTraceParam.MatchString(values[0]) {
			return values[0]
		}
		return ""
	}
	return wire.Trace{TraceID: param("traceId"), ParentSpanID: param("parentSpanId"), CallID: param("callId")}
}
