package callback

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// partDigest is the length in bytes of a part's digest, which detects a repeated stream with
// another text. The Lua script stream has the length in base64 as a constant.
const partDigest = 6

// errChannelToken is returned for a channel's credential, under which a repeated stream could
// not be told from a new one.
var errChannelToken = fault.New(fault.Validation, "An answer can be streamed only with the token of a work item. Send a whole body with the token of a channel.").
	WithDetails([]fault.Issue{{Path: "", Code: fault.IssueValue, Message: "The token is one of a channel."}})

// StreamRequest is an answer that arrives bit by bit.
type StreamRequest struct {
	Credential
	MediaType string // NDJSON or EventStream
	PerDelta  bool   // each delta is a part, not each sentence
	Trace     wire.Trace
	// Interrupt is called with the error with which the stream ends when its work item is
	// cancelled or its channel ends. It must not block.
	Interrupt func(error)
}

// Stream is a streamed answer that is arriving. Its methods are not safe for concurrent
// use.
type Stream struct {
	service *Service
	request StreamRequest
	decoder *streamDecoder
	checked bool  // Check has run
	invalid error // its result

	// Known after Check.
	TeamID   string    // of the channel
	Deadline time.Time // when the work item times out or, if it is settled, is forgotten

	callbackID string
	digests    strings.Builder // as in StreamParams
	parts      int             // that were delivered
}

// OpenStream returns a stream whose credential is not checked yet. The caller must call Close.
func (s *Service) OpenStream(r StreamRequest) *Stream {
	decoder := &streamDecoder{kind: r.Kind, channelID: r.ChannelID, mediaType: r.MediaType, perDelta: r.PerDelta}
	st := &Stream{service: s, request: r, decoder: decoder, callbackID: newCallbackID()}
	st.digests.WriteByte('+')
	s.streams.add(st) // before the check, so that no cancellation is missed
	return st
}

// Check checks the credential, once.
func (st *Stream) Check(ctx context.Context) error {
	if st.checked {
		return st.invalid
	}
	teamID, state, err := st.service.authorize(ctx, st.request.Credential)
	if err == nil && !state.OfWorkItem {
		err = errChannelToken
	}
	st.TeamID, st.Deadline = teamID, time.Now().Add(state.TimeLeft)
	st.checked, st.invalid = true, err
	return err
}

// Size returns the memory that the stream needs.
func (st *Stream) Size() int64 { return st.decoder.Size() }

// Pending returns the length of the line, and of the event, that is not complete yet.
func (st *Stream) Pending() int { return len(st.decoder.line) + len(st.decoder.event) }

// Fail ends the stream, counts err and returns it.
func (st *Stream) Fail(err error) error {
	st.Close()
	st.service.metrics.countError(st.request.Kind, err)
	return err
}

// Expired returns the error of an answer that did not end before Deadline. If the work item has
// not timed out, the provider has to repeat the answer: another request has settled it
// meanwhile, or the store's clock was set back.
func (st *Stream) Expired(ctx context.Context) error {
	if _, _, err := st.service.authorize(ctx, st.request.Credential); err != nil {
		return err
	}
	return fault.New(fault.ServiceUnavailable, "The stream took too long. Send the whole stream again.").WithRetryAfter(time.Second)
}

// Close ends the stream.
func (st *Stream) Close() { st.service.streams.remove(st) }

// Write delivers the parts that are complete with further bytes. Once the last line has arrived, it
// settles the work item and returns the receipt. The first Write calls Check, unless Check has run
// or the answer is complete: to settle the work item, the store checks the credential itself.
func (st *Stream) Write(ctx context.Context, data []byte) (*Receipt, error) {
	parts, err := st.decoder.Write(data)
	if !st.checked && err == nil && st.decoder.Done() {
		return st.deliverWhole(ctx, parts)
	}
	return st.checkAndDeliver(ctx, parts, err)
}

// End settles the work item after the last byte. It returns an error if the stream
// is incomplete.
func (st *Stream) End(ctx context.Context) (*Receipt, error) {
	parts, err := st.decoder.Close()
	return st.checkAndDeliver(ctx, parts, err)
}

// checkAndDeliver delivers parts, or returns the problem with them, if the credential is valid.
func (st *Stream) checkAndDeliver(ctx context.Context, parts []string, problem error) (*Receipt, error) {
	if err := st.Check(ctx); err != nil {
		return nil, err
	}
	if problem != nil {
		return nil, problem
	}
	return st.deliver(ctx, parts)
}

// deliverWhole delivers a whole answer whose credential is not checked.
func (st *Stream) deliverWhole(ctx context.Context, parts []string) (*Receipt, error) {
	if err := st.request.validate(); err != nil {
		return nil, err
	}
	receipt, err := st.deliver(ctx, parts)
	if errors.Is(err, statusErrors[Invalid]) { // also for a channel's token, for which Check has a better error
		err = cmp.Or(st.Check(ctx), err)
	}
	return receipt, err
}

// deliver delivers the texts of parts. Once the last line has arrived, it returns the receipt.
func (st *Stream) deliver(ctx context.Context, texts []string) (receipt *Receipt, err error) {
	if len(texts) == 0 && !st.decoder.Done() {
		return nil, nil
	}
	s, kind, received := st.service, st.request.Kind, st.service.now()
	for _, text := range texts {
		sum := sha256.Sum256([]byte(text))
		st.digests.WriteString(base64.RawURLEncoding.EncodeToString(sum[:partDigest]))
	}
	err = s.withPolicy(ctx, st.request.ChannelID, func(ch *channelPolicy) error {
		receipt, err = st.send(ctx, ch, texts)
		return err
	})
	if err != nil {
		return nil, err
	}
	st.parts += len(texts)
	s.metrics.parts.WithLabelValues(string(kind)).Add(float64(len(texts)))
	if receipt != nil {
		s.metrics.countAccepted(kind, *receipt, s.now().Sub(received))
	}
	return receipt, nil
}

// send hands parts and, if it has arrived, the entries of the last line to the store. It returns
// the receipt of the last line.
func (st *Stream) send(ctx context.Context, ch *channelPolicy, texts []string) (_ *Receipt, err error) {
	s, last := st.service, st.decoder.Done()
	p := StreamParams{Credential: st.request.Credential, CallbackID: st.callbackID, Epoch: ch.Epoch, Digests: st.digests.String()}
	base := ch.entry(p.Credential, st.request.Trace, p.CallbackID, s.now())
	parts := make([]wire.Entry, len(texts))
	for i, text := range texts {
		parts[i] = st.decoder.Part(base, st.parts+i+1, text)
	}
	if p.Parts, err = encode(parts); err != nil {
		return nil, err
	}
	var receipt Receipt
	if last {
		if p.Last, receipt, p.Receipt, err = ch.decide(ctx, st.decoder.result, base, st.decoder.lastLine); err != nil {
			return nil, err
		}
		p.Digests += "." + strictjson.Digest(st.decoder.lastLine)
	}
	item := ParkedItem{ChannelID: p.ChannelID, Unfinished: !last}
	waitsFor, err := s.storeOrPark(ctx, ch.TeamID, item, slices.Concat(p.Parts, p.Last), func(ctx context.Context, mayPark bool) (DeliverResult, error) {
		p.Park = mayPark
		return s.store.DeliverStream(ctx, p) // a repeated call skips parts that were stored
	})
	if err != nil || !last {
		return nil, err
	}
	receipt.setStatus(waitsFor)
	return &receipt, nil
}

// OpenStreams are the streams of this instance. It is a kv.Listener for the notices that end
// them: the ID of a channel that has ended, or the ID of a channel, a space and the ID of a
// cancelled work item.
type OpenStreams struct {
	service *Service
	checks  sync.WaitGroup

	mu   sync.Mutex
	down bool
	open map[string]map[*Stream]struct{} // by channel ID
}

func (o *OpenStreams) add(st *Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := st.request.ChannelID
	if o.open[id] == nil {
		o.open[id] = map[*Stream]struct{}{}
	}
	o.open[id][st] = struct{}{}
}

func (o *OpenStreams) remove(st *Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := st.request.ChannelID
	if delete(o.open[id], st); len(o.open[id]) == 0 {
		delete(o.open, id)
	}
}

func (o *OpenStreams) count() (n float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, streams := range o.open {
		n += float64(len(streams))
	}
	return n
}

// Down implements kv.Listener: notices may be missed until Up.
func (o *OpenStreams) Down(error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down = true
}

// Up checks the credentials of all streams if notices may have been missed.
func (o *OpenStreams) Up() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.down {
		return
	}
	o.down = false
	var list []*Stream
	for _, streams := range o.open {
		list = slices.AppendSeq(list, maps.Keys(streams))
	}
	o.checks.Go(func() {
		for _, st := range list {
			ctx, cancel := context.WithTimeout(context.Background(), queryTimeout)
			if state, err := o.service.credentialState(ctx, st.request.Credential); err == nil && (state.Status == Cancelled || state.Status == Ended) {
				st.request.Interrupt(statusErrors[state.Status])
			}
			cancel()
		}
	})
}

// Message interrupts the streams that a notice is about.
func (o *OpenStreams) Message(notice string) {
	channelID, workItemID, cancelled := strings.Cut(notice, " ")
	o.mu.Lock()
	defer o.mu.Unlock()
	for st := range o.open[channelID] {
		if !cancelled {
			st.request.Interrupt(statusErrors[Ended])
		} else if st.request.WorkItemID == workItemID {
			st.request.Interrupt(statusErrors[Cancelled])
		}
	}
}
