package httpapi

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipeResponse is a response on a connection that a test controls.
type pipeResponse struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (r pipeResponse) SetReadDeadline(t time.Time) error { return r.conn.SetReadDeadline(t) }

func TestStreamReaderWaits(t *testing.T) {
	reason := errors.New("cancelled")
	for name, c := range map[string]struct {
		deadline  time.Duration
		pause     time.Duration // before each byte of the provider
		bytes     int
		interrupt time.Duration // 0: never
		want      error
		after     time.Duration
	}{
		"until silence":              {time.Hour, 0, 0, 0, os.ErrDeadlineExceeded, streamSilence},
		"until the deadline":         {time.Second, 0, 0, 0, os.ErrDeadlineExceeded, time.Second},
		"for a slow provider":        {time.Hour, streamSilence - time.Second, 4, 0, os.ErrDeadlineExceeded, 4*(streamSilence-time.Second) + streamSilence},
		"at most until the deadline": {time.Minute, time.Second, 1000, 0, os.ErrDeadlineExceeded, time.Minute},
		"until an interruption":      {time.Hour, time.Second, 1000, 90 * time.Second, reason, 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				provider, conn := net.Pipe()
				x := &exchange{}
				x.ResponseWriter = pipeResponse{httptest.NewRecorder(), conn}
				s := newStreamReader(x, &http.Request{Body: conn})
				start := time.Now()
				var writing sync.WaitGroup
				writing.Go(func() {
					for range c.bytes {
						time.Sleep(c.pause)
						if _, err := provider.Write([]byte("x")); err != nil {
							return
						}
					}
				})
				if c.interrupt > 0 {
					time.AfterFunc(c.interrupt, func() { s.interrupt(reason) })
				}
				read := 0
				for {
					data, err := s.read(start.Add(c.deadline))
					read += len(data)
					if err == nil {
						continue
					}
					if took := time.Since(start); took.Round(time.Second) != c.after {
						t.Errorf("ended after %s with %v, want %s", took, err, c.after)
					}
					break
				}
				if err := s.interrupted(); c.interrupt > 0 && !errors.Is(err, c.want) || c.interrupt == 0 && !errors.Is(s.err, c.want) {
					t.Errorf("error %v, interrupted %v, want %v", s.err, err, c.want)
				}
				if c.bytes < 1000 && read != c.bytes {
					t.Errorf("read %d bytes, want %d", read, c.bytes)
				}
				_, _ = provider.Close(), conn.Close()
				writing.Wait()
			})
		})
	}
}
