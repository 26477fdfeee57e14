package httpapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"telapi/internal/callback"
	"telapi/internal/fault"
	"telapi/internal/httpserve"
)

const (
	// streamSilence is how long a provider may send nothing during a streamed answer.
	streamSilence = 30 * time.Second
	// streamOverhead is the memory of a stream without its text: the buffers of the connection
	// and of the reader.
	streamOverhead = 8 << 10
	streamBuffer   = 4 << 10
	// streamBudget is the memory for all streamed answers that are arriving.
	streamBudget = 64 << 20
	// streamStart is how long a stream may be silent before its credential is checked.
	streamStart = 5 * time.Millisecond
	// streamEnd is how long the response waits for the end of a body after its last line.
	streamEnd = 20 * time.Millisecond
	// streamLinger is how long the connection stays open after a response that was sent before the
	// end of the body. The provider may lose a response if it is closed while it sends.
	streamLinger = time.Second
)

// Values of the query parameter split.
const (
	splitSentence = "sentence"
	splitNone     = "none"
)

var errStreamRestart = fault.New(fault.ServiceUnavailable, "The instance is restarting. Send the whole stream again.").WithRetryAfter(time.Second)

// acceptStream delivers the parts of an answer while it arrives. It returns after the last
// line, or when the answer cannot be accepted any more.
func (s *Server) acceptStream(x *exchange, r *http.Request, body *streamReader, request callback.StreamRequest) (callback.Receipt, error) {
	withTimeout := func(run func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), handlerTimeout) // a failed read cancels x.ctx
		defer cancel()
		return run(ctx)
	}
	if r.ContentLength > callback.MaxStreamBytes {
		return callback.Receipt{}, s.deps.Callbacks.Reject(x.ctx, request.Credential, tooLarge(callback.MaxStreamBytes))
	}
	request.Interrupt = body.interrupt
	stream := s.deps.Callbacks.OpenStream(request)
	defer stream.Close()
	defer context.AfterFunc(s.streamsCtx, func() { body.interrupt(errStreamRestart) })()
	var issues fault.Issues
	if split, given := issues.QueryValue(r.URL.Query(), "split"); given && split != splitNone && split != splitSentence {
		issues.Add("/query/split", fault.IssueValue, "Use split=none or split=sentence.")
	}
	if err := issues.Err(); err != nil {
		return callback.Receipt{}, stream.Fail(cmp.Or(withTimeout(stream.Check), err)) // issues are for valid credentials only
	}
	data, readErr := body.readFirst(func() error { return withTimeout(stream.Check) })
	for {
		var receipt *callback.Receipt
		err := withTimeout(func(ctx context.Context) (err error) {
			done, err := s.waitIfLarge(ctx, stream.Pending()+len(data))
			if err != nil {
				return err
			}
			defer done()
			if len(data) > 0 { // if readErr is set too, the next read returns it again
				receipt, err = stream.Write(ctx, data)
				return err
			}
			if err := stream.Check(ctx); err != nil {
				return err
			}
			switch {
			case errors.Is(readErr, io.EOF):
				receipt, err = stream.End(ctx)
				return err
			case body.interrupted() != nil:
				return body.interrupted()
			case !time.Now().Before(stream.Deadline):
				return stream.Expired(ctx)
			case errors.Is(readErr, os.ErrDeadlineExceeded):
				return fault.New(fault.MalformedJSON, "The stream was silent for %d s. Send the whole stream again.", int(streamSilence.Seconds()))
			}
			return fault.New(fault.MalformedJSON, "The body is incomplete.").WithCause(readErr)
		})
		switch {
		case err != nil:
			return callback.Receipt{}, stream.Fail(err)
		case receipt != nil:
			return *receipt, nil
		}
		x.holder = stream.TeamID
		if size := streamOverhead + stream.Size(); size > x.body.size {
			if err := x.reserve(s.streamedBodies, size); err != nil {
				return callback.Receipt{}, stream.Fail(err)
			}
		}
		data, readErr = body.read(stream.Deadline)
	}
}

// streamReader reads the body of a streamed answer. A read can be interrupted.
type streamReader struct {
	body io.Reader
	conn *http.ResponseController
	buf  [streamBuffer]byte
	used bool  // something was read, or could be: the provider does not wait for 100 Continue
	err  error // of the last read

	mu       sync.Mutex
	reason   error     // of an interruption
	deadline time.Time // of the current read, or of the last one
	answered bool      // an interruption has no effect any more
}

func newStreamReader(x *exchange, r *http.Request) *streamReader {
	s := &streamReader{body: r.Body, conn: http.NewResponseController(x), used: r.Header.Get("Expect") == ""}
	_ = s.conn.EnableFullDuplex() // so that a response can be sent before the end of the body
	return s
}

// interrupt ends the current read and makes all others fail.
func (s *streamReader) interrupt(reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reason == nil && !s.answered {
		s.reason, s.deadline = reason, time.Now()
		_ = s.conn.SetReadDeadline(s.deadline)
	}
}

// interrupted returns the reason of an interruption, or nil.
func (s *streamReader) interrupted() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// read returns the next bytes, or the reason why there are none. It waits until the
// deadline, but not longer than streamSilence. The bytes are valid until the next call.
func (s *streamReader) read(deadline time.Time) ([]byte, error) {
	if silence := time.Now().Add(streamSilence); silence.Before(deadline) {
		deadline = silence
	}
	s.mu.Lock()
	s.err = cmp.Or(s.err, s.reason)
	s.deadline = deadline
	_ = s.conn.SetReadDeadline(deadline)
	s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	n, err := s.body.Read(s.buf[:])
	s.used, s.err = true, err
	return s.buf[:n], err
}

// readFirst reads the first bytes. If they do not arrive at once, it runs check meanwhile, so
// that a provider with a wrong credential need not start its model. An error of check
// interrupts the read. A provider that waits for 100 Continue gets it after the check.
func (s *streamReader) readFirst(check func() error) ([]byte, error) {
	if !s.used {
		if err := check(); err != nil {
			return nil, err
		}
		return s.read(time.Now().Add(streamSilence))
	}
	checked := make(chan struct{})
	late := time.AfterFunc(streamStart, func() {
		defer close(checked)
		if err := check(); err != nil {
			s.interrupt(err)
		}
	})
	data, err := s.read(time.Now().Add(streamSilence))
	if late.Stop() {
		return data, err
	}
	<-checked
	if reason := s.interrupted(); reason != nil {
		return nil, reason
	}
	return data, err
}

// finish removes the read deadline. It reports whether the connection can be used again: the body
// was read to its end before the deadline, which an interruption sets to now. After the deadline,
// net/http, which waits for the next request by then, has given up the connection.
func (s *streamReader) finish() (reusable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answered = true
	_ = s.conn.SetReadDeadline(time.Time{})
	return errors.Is(s.err, io.EOF) && time.Now().Before(s.deadline)
}

// respond sends the response to a streamed answer. If the provider is still sending, the
// connection stays open for a moment, so that it gets the response.
func (s *streamReader) respond(x *exchange, send func() error) error {
	if s.err == nil && s.used {
		_, _ = s.read(time.Now().Add(streamEnd))
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(streamWriteTimeout))
	if s.finish() {
		return send()
	}
	x.Header().Set("Connection", "close")
	x.isTruncated = true
	err := send()
	if err == nil && s.used && s.conn.Flush() == nil {
		httpserve.Linger(x.Request.Context(), streamLinger)
	}
	return err
}
