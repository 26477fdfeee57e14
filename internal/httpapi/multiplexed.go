package httpapi

import (
	"container/list"
	"net/http"
	"sync"
	"time"
)

// multiplexed bounds the requests over HTTP/2 that are in progress. One connection has
// many of them, and a client can keep each in progress at no cost: it announces a body
// that it does not send, or does not accept the response. The oldest request is cut when
// there are too many, since a new one is more likely to be finished soon.
type multiplexed struct {
	max int

	mu       sync.Mutex
	requests list.List // of *http.ResponseController, oldest first
}

// maxMultiplexed is the number of requests over HTTP/2. Each needs up to 75 KB.
const maxMultiplexed = 1024

// begin adds a request. The handler calls end before it returns.
func (m *multiplexed) begin(w http.ResponseWriter) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	added := m.requests.PushBack(http.NewResponseController(w))
	if m.requests.Len() > m.max {
		oldest, _ := m.requests.Remove(m.requests.Front()).(*http.ResponseController)
		past := time.Now().Add(-time.Second)
		_ = oldest.SetReadDeadline(past)
		_ = oldest.SetWriteDeadline(past)
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.requests.Remove(added) // no effect if the request was cut
	}
}
