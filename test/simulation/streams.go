package simulation

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/fault"
)

const (
	maxParts = 6
	maxPause = 800 * time.Millisecond // between two pieces of most streams
	// interruptBound is how long after the acknowledgement of a cancellation or a deletion an
	// open stream must be interrupted, whatever the network does.
	interruptBound = 20 * time.Second
)

// sentence returns a part of the streamed answer to a work item.
func sentence(itemID string, part int) string {
	return fmt.Sprintf("The answer to %s has part %d here. ", itemID, part)
}

// answerText returns the whole text of a streamed answer.
func answerText(itemID string, parts int) (text string) {
	for part := range parts {
		text += sentence(itemID, part+1)
	}
	return text
}

// describePart identifies a part of a streamed answer. One with another text is not known.
func describePart(e wire.Entry) string {
	if strings.TrimSpace(e.Text) != strings.TrimSpace(sentence(e.WorkItemID, e.Part)) {
		return "part with another text: " + e.Text
	}
	return partKey(e.WorkItemID, e.Part)
}

// describeEnd identifies the entry that settles a streamed answer.
func describeEnd(e wire.Entry) string {
	if e.Content != nil && *e.Content != answerText(e.WorkItemID, e.Parts) {
		return "result with another text: " + *e.Content
	}
	return "result " + e.WorkItemID
}

func partKey(itemID string, part int) string { return fmt.Sprintf("part %d of %s", part, itemID) }

// streamedAnswer is what a provider streams.
type streamedAnswer struct {
	mediaType string
	perDelta  bool
	parts     int
	unwanted  bool // the user interrupts it
}

// newStreamedAnswer draws a streamed answer. It is nil if the provider sends a whole body.
func newStreamedAnswer(rng *rand.Rand) *streamedAnswer {
	a := &streamedAnswer{mediaType: callback.NDJSON, parts: 1 + rng.IntN(maxParts), perDelta: rng.IntN(2) == 0}
	if rng.IntN(2) == 0 {
		a.mediaType = callback.EventStream
	}
	if rng.IntN(3) > 0 {
		return nil
	}
	a.unwanted = rng.IntN(5) == 0
	return a
}

// body returns the bytes of the stream. Without perDelta the text may be cut anywhere.
func (a *streamedAnswer) body(itemID string, rng *rand.Rand) (body []byte) {
	format, end := `{"delta":%q}`+"\n", `{"done":true}`
	if a.mediaType == callback.EventStream {
		format, end = `data: {"choices":[{"delta":{"content":%q}}]}`+"\n\n", "data: [DONE]\n\n"
	}
	if a.perDelta {
		for part := range a.parts {
			body = fmt.Appendf(body, format, sentence(itemID, part+1))
		}
		return append(body, end...)
	}
	for text := answerText(itemID, a.parts); text != ""; {
		n := 1 + rng.IntN(len(text))
		body = fmt.Appendf(body, format, text[:n])
		text = text[n:]
	}
	return append(body, end...)
}

// attempt sends the whole stream to an instance, in pieces. Sometimes the connection breaks, until
// faults have ended.
// done is false if the provider does not know the outcome.
func (w *world) attempt(p *serviceProcess, r *channelRecord, item *itemRecord, credential callback.Credential, a *streamedAnswer, rng *rand.Rand) (receipt callback.Receipt, done bool, err error) {
	interrupted := make(chan error, 1)
	request := callback.StreamRequest{Credential: credential, MediaType: a.mediaType, PerDelta: a.perDelta, Interrupt: func(err error) {
		select {
		case interrupted <- err:
		default:
		}
	}}
	stream := p.callbacks.OpenStream(request)
	defer stream.Close()
	if rng.IntN(2) == 0 { // the provider is slow
		if err := p.call(stream.Check); err != nil {
			return receipt, true, err
		}
	}
	body := a.body(item.id, rng)
	sent, length, rival := 0, len(body), a.perDelta && rng.IntN(10) == 0
	if rng.IntN(4) == 0 && !w.faultsEnded() {
		length = rng.IntN(length)
	}
	w.trace("provider", "streams %d of %d bytes for %s to %s", length, len(body), item.id, p.host.name)
	for {
		n := rng.IntN(length - sent + 1)
		var settled *callback.Receipt
		err := p.call(func(ctx context.Context) (err error) {
			switch {
			case sent < length:
				settled, err = stream.Write(ctx, body[sent:sent+n])
			case length == len(body):
				settled, err = stream.End(ctx)
			default:
				err = errBroken
			}
			return err
		})
		switch {
		case err != nil:
			return receipt, sent < length || length == len(body), err
		case settled != nil:
			return *settled, true, nil
		}
		sent += n
		wait := pauseOf(rng)
		if sent > bytes.Index(body, []byte("\n"))+1 { // the first part is stored, unless the text was cut before its end
			if r.streamBegun(item) && a.unwanted && r.interrupt(item) { // only the notice of the cancellation ends the stream in time
				wait = interruptBound + 2*time.Second + time.Duration(rng.Int64N(int64(10*time.Second)))
			}
			if rival {
				rival = false
				w.contradict(p, r, item, credential)
			}
		}
		if w.faultsEnded() { // otherwise the answer may not be complete when the run ends
			wait = min(wait, maxPause)
		}
		if err := w.pause(p, r, item, interrupted, stream, wait); err != nil {
			return receipt, p.host.alive(), err
		}
	}
}

var errBroken = fault.New(fault.MalformedJSON, "The body is incomplete.")

// pauseOf returns the time until the next piece, sometimes longer than an item may take.
func pauseOf(rng *rand.Rand) time.Duration {
	if rng.IntN(20) == 0 {
		return time.Duration(rng.Int64N(int64(25 * time.Second)))
	}
	return time.Duration(rng.Int64N(int64(maxPause)))
}

// call runs an operation with the time that a request has.
func (p *serviceProcess) call(operate func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
	defer cancel()
	return operate(ctx)
}

// pause waits before the next piece. It returns why the stream must end.
func (w *world) pause(p *serviceProcess, r *channelRecord, item *itemRecord, interrupted <-chan error, stream *callback.Stream, length time.Duration) error {
	timer := time.NewTimer(min(length, time.Until(stream.Deadline)))
	defer timer.Stop()
	select {
	case err := <-interrupted:
		w.trace("provider", "stream for %s is interrupted: %s", item.id, fault.From(err).Code)
		return err
	case <-timer.C:
	case <-p.ctx.Done():
	case <-w.done:
	}
	switch {
	case w.over() || p.ctx.Err() != nil || p.isStopped():
		return fault.New(fault.ServiceUnavailable, "The instance is restarting.")
	case !time.Now().Before(stream.Deadline):
		return p.call(stream.Expired)
	case r.shouldBeInterrupted(item):
		r.violation("the stream for item %d was not interrupted within %v", item.number, interruptBound)
	}
	return nil
}

func (p *serviceProcess) isStopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopped
}

// shouldBeInterrupted reports whether a stream is open too long after the cancellation of its
// item or the end of its channel.
func (r *channelRecord) shouldBeInterrupted(item *itemRecord) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := item.cancelledAt
	if since.IsZero() {
		since = r.deleted
	}
	return !since.IsZero() && time.Since(since) > interruptBound && !r.ledger.lostSince(r.id, time.Time{})
}

// contradict streams another text with the token of a stream that has begun.
func (w *world) contradict(p *serviceProcess, r *channelRecord, item *itemRecord, credential callback.Credential) {
	request := callback.StreamRequest{Credential: credential, MediaType: callback.NDJSON, PerDelta: true, Interrupt: func(error) {}}
	err := p.call(func(ctx context.Context) error {
		stream := p.callbacks.OpenStream(request)
		defer stream.Close()
		_, err := stream.Write(ctx, []byte(`{"delta":"Another text."}`+"\n"))
		return err
	})
	if err == nil && !r.ledger.lostSince(r.id, time.Time{}) {
		r.violation("item %d got parts of two streams", item.number)
	}
}

// attemptSomewhere streams an answer once, and ignores the outcome.
func (w *world) attemptSomewhere(r *channelRecord, item *itemRecord, credential callback.Credential, a *streamedAnswer) {
	rng := w.rng("former attempt", r.name, item.number)
	running := w.runningInstances()
	if len(running) > 0 && w.sleep(time.Duration(rng.Int64N(int64(5*time.Second)))) {
		_, _, _ = w.attempt(running[rng.IntN(len(running))], r, item, credential, a, rng)
	}
}
