package httpapi

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"telapi/internal/fault"
)

// streamLimit bounds the responses of one kind that are in progress: those of one
// API key, user or address, so that one client cannot use up the instance, and those of
// all.
type streamLimit struct {
	name       string // in the error
	perSubject int
	total      int

	mu   sync.Mutex
	open map[string]int // by subject
	all  int
}

func newStreamLimit(name string, perSubject, total int) *streamLimit {
	return &streamLimit{name: name, perSubject: perSubject, total: total, open: map[string]int{}}
}

// exceededStreams is the details of the error for a key that has too many streams.
type exceededStreams struct {
	Limit string `json:"limit"`
	Max   int    `json:"max"`
}

const streamRetryAfter = 5 * time.Second

// begin counts a response, or fails with 429 or 503. The caller calls end when the
// response is finished.
func (l *streamLimit) begin(subject string) (end func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open[subject] >= l.perSubject:
		return nil, fault.New(fault.RateLimitExceeded, "Too many of these requests are in progress with your key or from your address: the limit is %d. Close one, or try again later.", l.perSubject).
			WithDetails(exceededStreams{l.name, l.perSubject}).WithRetryAfter(streamRetryAfter)
	case l.all >= l.total:
		return nil, fault.New(fault.ServiceUnavailable, "Too many of these requests are in progress on this instance: the limit is %d. Try again later.", l.total).
			WithRetryAfter(streamRetryAfter)
	}
	l.open[subject]++
	l.all++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.all--
		if l.open[subject]--; l.open[subject] == 0 {
			delete(l.open, subject)
		}
	}, nil
}

const (
	// audioBudget is the memory for the audio in responses that are being sent.
	audioBudget = 48 << 20
	// A response with audio must be read within audioGrace plus the time that it needs
	// at minAudioRate.
	audioGrace   = 5 * time.Second
	minAudioRate = 128 << 10 // bytes per second
)

// respondWithAudio sends a response that contains audio of the given length, if the
// budget permits, and disconnects a client that reads it too slowly.
func (x *exchange) respondWithAudio(budget *atomic.Int64, length int, response any) error {
	size := 4 * int64(length) // the audio, its base64 and the response
	defer budget.Add(-size)
	if used := budget.Add(size); used > audioBudget && used > size { // the largest response fits if it is the only one
		return fault.New(fault.ServiceUnavailable, "Too much audio is being sent. Read the responses faster, or try again later.").WithRetryAfter(streamRetryAfter)
	}
	allowed := audioGrace + time.Duration(length)*time.Second/minAudioRate
	_ = http.NewResponseController(x).SetWriteDeadline(time.Now().Add(allowed))
	return x.WriteJSON(http.StatusOK, response)
}
