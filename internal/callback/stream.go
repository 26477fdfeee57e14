package callback

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/strictjson"
)

// partDigest is the length of the digest of a part in bytes. It detects a repeated stream
// with another text. The script stream knows its length in base64.
const partDigest = 6

// errChannelToken is returned for a channel's credential, under which a repeated stream could
// not be told from a new one.
var errChannelToken = fault.New(fault.Validation, "An answer can be streamed only with the token of a work item. Send a whole body with the token of a channel.").
	WithDetails([]fault.Issue{{Path: "", Code: fault.IssueValue, Message: "The token is one of a channel."}})

var errRepeat = fault.New(fault.ServiceUnavailable, "The stream took too long. Send the whole stream again.").WithRetryAfter(time.Second)

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
	channel *channelPolicy // nil: not known yet
	base    wire.Entry
	checked bool  // Check has run
	invalid error // its result

	// Deadline is the time at which the work item times out, or at which a settled one is
	// forgotten. It is known after Check.
	Deadline time.Time

	digests strings.Builder // of all parts
	parts   int             // that were delivered
}

// OpenStream returns a stream whose credential is not checked yet. The caller must call Close.
func (s *Service) OpenStream(r StreamRequest) (*Stream, error) {
	st := &Stream{service: s, request: r, decoder: newStreamDecoder(r.Kind, r.ChannelID, r.MediaType, r.PerDelta)}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("create callback ID: %w", err)
	}
	st.base = wire.Entry{ChannelID: r.ChannelID, Trace: r.Trace, Source: r.Kind.Source(), CallbackID: "cb_" + id.String(), WorkItemID: r.WorkItemID}
	st.digests.WriteByte('+')
	s.streams.add(st) // before the check, so that no cancellation is missed
	return st, nil
}

// Check checks the credential, once.
func (st *Stream) Check(ctx context.Context) error {
	if st.checked {
		return st.invalid
	}
	channel, state, err := st.service.check(ctx, st.request.Credential)
	if err == nil && !state.WorkItem {
		err = errChannelToken
	}
	st.channel, st.Deadline = channel, time.Now().Add(state.TimeLeft)
	st.checked, st.invalid = true, err
	return err
}

// TeamID returns the team of the channel. It is known after Check.
func (st *Stream) TeamID() string { return st.channel.TeamID }

// CallbackID identifies this attempt to deliver the answer.
func (st *Stream) CallbackID() string { return st.base.CallbackID }

// Size returns the memory that the stream needs.
func (st *Stream) Size() int64 { return st.decoder.Size() }

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
	if _, _, err := st.service.check(ctx, st.request.Credential); err != nil {
		return err
	}
	return errRepeat
}

// Close ends the stream.
func (st *Stream) Close() { st.service.streams.remove(st) }

// Write delivers the parts that are complete with further bytes. Once the last line has
// arrived, it settles the work item and returns the receipt. It checks the credential if that
// has not happened. An answer that is complete at once needs no check: the store checks what it
// settles.
func (st *Stream) Write(ctx context.Context, data []byte) (*Receipt, error) {
	parts, err := st.decoder.Write(data)
	if !st.checked && err == nil && st.decoder.Done() {
		return st.deliverWhole(ctx, parts)
	}
	return st.deliverChecked(ctx, parts, err)
}

// End settles the work item after the last byte. It returns an error if the stream
// is incomplete.
func (st *Stream) End(ctx context.Context) (*Receipt, error) {
	parts, err := st.decoder.Close()
	return st.deliverChecked(ctx, parts, err)
}

// deliverChecked delivers parts, or returns the problem with them, if the credential is valid.
func (st *Stream) deliverChecked(ctx context.Context, parts []string, problem error) (*Receipt, error) {
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
	err := st.request.check()
	if err == nil {
		st.channel, err = st.service.channelPolicy(ctx, st.request.ChannelID)
	}
	if err != nil {
		return nil, err
	}
	receipt, err := st.deliver(ctx, parts)
	if errors.Is(err, statusErrors[Invalid]) { // or the token is one of a channel
		err = cmp.Or(st.Check(ctx), err)
	}
	return receipt, err
}

func (st *Stream) deliver(ctx context.Context, texts []string) (*Receipt, error) {
	last := st.decoder.Done()
	if len(texts) == 0 && !last {
		return nil, nil
	}
	received := st.service.now()
	for _, text := range texts {
		sum := sha256.Sum256([]byte(text))
		st.digests.WriteString(base64.RawURLEncoding.EncodeToString(sum[:partDigest]))
	}
	for range 2 { // retry if the cached policy belongs to an earlier epoch
		receipt, err := st.send(ctx, texts, last)
		if !errors.Is(err, errStale) {
			if err == nil {
				st.parts += len(texts)
				st.service.metrics.parts.WithLabelValues(string(st.request.Kind)).Add(float64(len(texts)))
			}
			if receipt != nil {
				st.service.metrics.countAccepted(st.request.Kind, *receipt, st.service.now().Sub(received))
			}
			return receipt, err
		}
		st.service.policies.Remove(st.request.ChannelID)
		if st.channel, err = st.service.channelPolicy(ctx, st.request.ChannelID); err != nil {
			return nil, err
		}
	}
	return nil, fault.Unavailable("The channel", errStale)
}

// send hands parts and, if last is set, the entries of the last line to the store.
func (st *Stream) send(ctx context.Context, texts []string, last bool) (*Receipt, error) {
	s, ch := st.service, st.channel
	base := st.base
	base.At = s.now().UnixMilli()
	base.Trace.CallID = cmp.Or(base.Trace.CallID, ch.CallID)
	base.Trace.TransactionID = cmp.Or(base.Trace.TransactionID, ch.TransactionID)
	p := StreamParams{Credential: st.request.Credential, CallbackID: base.CallbackID, Epoch: ch.Epoch, Digests: st.digests.String(), Parts: make([][]byte, len(texts))}
	size := int64(parkedOverhead)
	encode := func(e wire.Entry) ([]byte, error) {
		encoded, err := json.Marshal(&e)
		size += int64(len(encoded))
		return encoded, err
	}
	var err error
	for i, text := range texts {
		if p.Parts[i], err = encode(st.decoder.Part(base, st.parts+i+1, text)); err != nil {
			return nil, err
		}
	}
	var receipt Receipt
	if last {
		result, line := st.decoder.Result(), st.decoder.LastLine()
		entries, decisions := result.Entries(base, ch.policy)
		p.Last = make([][]byte, len(entries))
		for i := range entries {
			if p.Last[i], err = encode(entries[i]); err != nil {
				return nil, err
			}
		}
		receipt = newReceipt(base.CallbackID, entries, decisions, result.Ignored(line))
		receipt.Parts = st.parts + len(texts)
		if st.request.Kind == wire.BotItem {
			receipt.Messages += receipt.Parts
		}
		recordDecisions(ctx, ch.TeamID, receipt.Commands)
		if p.Receipt, err = json.Marshal(&receipt); err != nil {
			return nil, fmt.Errorf("encode receipt: %w", err)
		}
		p.Digests += "." + strictjson.Digest(line)
	}
	delivered, err := s.storeOrPark(ctx, ch.TeamID, size, ParkedItem{ChannelID: p.ChannelID, Parts: !last}, func(ctx context.Context, park bool) (DeliverResult, error) {
		p.Park = park
		return s.store.DeliverStream(ctx, p) // skips parts that were stored
	})
	if err != nil || !last {
		return nil, err
	}
	receipt.setStatus(delivered.WaitsFor)
	return &receipt, nil
}

// openStreams are the streams of this instance. It is the NoticeSubscriber.
type openStreams struct {
	service *Service
	checks  sync.WaitGroup

	mu   sync.Mutex
	down bool
	open map[string]map[*Stream]struct{} // by channel ID
}

func (o *openStreams) add(st *Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := st.request.ChannelID
	if o.open[id] == nil {
		o.open[id] = map[*Stream]struct{}{}
	}
	o.open[id][st] = struct{}{}
}

func (o *openStreams) remove(st *Stream) {
	o.mu.Lock()
	defer o.mu.Unlock()
	id := st.request.ChannelID
	if delete(o.open[id], st); len(o.open[id]) == 0 {
		delete(o.open, id)
	}
}

func (o *openStreams) count() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, streams := range o.open {
		n += len(streams)
	}
	return n
}

// Down implements NoticeSubscriber.
func (o *openStreams) Down(error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down = true
}

// Up checks the credentials of all streams if notices may have been missed.
func (o *openStreams) Up() {
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
			if state, err := o.service.checkCredential(ctx, st.request.Credential); err == nil && (state.Status == Cancelled || state.Status == Ended) {
				st.request.Interrupt(statusErrors[state.Status])
			}
			cancel()
		}
	})
}

// Message interrupts the streams that a notice is about.
func (o *openStreams) Message(notice string) {
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
