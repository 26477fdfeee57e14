package campaign

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/test/harness"
)

// maxPending is the number of operations that a browser has under way.
const maxPending = 8

// maxHandshakeDelay is how late a failed handshake may reach an instance and replace
// the connection that was opened after it.
const maxHandshakeDelay = time.Minute

// browser is a page whose operations the ledger keeps.
type browser struct {
	*harness.Page
	ledger *ledger

	mu      sync.Mutex
	away    time.Time // no connections before this time
	pending []*operation

	handshakeFailed time.Time // used by the page only
}

// newBrowser returns a browser with a new session.
func newBrowser(s *installation, l *ledger) *browser {
	session, token := s.issue()
	b := &browser{Page: harness.NewPage(s.URL, session, token), ledger: l}
	b.TLS, b.Handle, b.Rejected, b.Closed = s.tls, b.handle, b.rejected, b.closed
	b.Delay = func(attempt int) time.Duration {
		b.mu.Lock()
		defer b.mu.Unlock()
		return max(time.Until(b.away), rand.N(min(s.size.reconnect[1], s.size.reconnect[0]<<min(attempt, 16))))
	}
	b.Acknowledged = func(id string, early bool) {
		l.update(id, func(o *operation) { o.frame.acknowledged = true })
		if early {
			l.problem("frame %s acknowledged before an earlier one", id)
		}
	}
	return b
}

// start starts an operation. Unless force is set, it returns nil if too many
// operations are under way.
func (b *browser) start(force bool) *operation {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Operations complete in order. One before a completed one is lost.
	for i, o := range slices.Backward(b.pending) {
		if o.completed() {
			b.pending = slices.Delete(b.pending, 0, i+1)
			break
		}
	}
	if len(b.pending) >= maxPending && !force {
		return nil
	}
	o := b.ledger.open(b.Session)
	b.pending = append(b.pending, o)
	b.Chat(o.id, fmt.Sprint(o.number))
	return o
}

// cut closes the TCP connection without a close frame, half of the time with a
// reset.
func (b *browser) cut() {
	conn := b.NetConn()
	switch {
	case conn == nil:
	case rand.IntN(2) == 0:
		harness.ResetConn(conn)
	default:
		_ = conn.Close()
	}
}

// stayAway closes the socket and reconnects later.
func (b *browser) stayAway(d time.Duration) {
	b.mu.Lock()
	b.away = time.Now().Add(d)
	b.mu.Unlock()
	b.cut()
}

func (b *browser) closed(err error) (again bool) {
	closed, is := errors.AsType[*websocket.CloseError](err)
	if !is {
		return true
	}
	switch code := closed.Code; {
	case code == 4503:
		return false
	case code == 4003:
		b.ledger.lossReported(b.Session, false)
	case code == 4502 && time.Since(b.handshakeFailed) < maxHandshakeDelay:
	case code >= 4500, code == 1007, code == 1008, code == 1009:
		b.ledger.problem("socket closed with %d %s, which forbids reconnecting", code, closed.Text)
	}
	b.ledger.note("close code %d", closed.Code)
	return true
}

func (b *browser) rejected(resp *http.Response) {
	b.handshakeFailed = time.Now()
	if resp == nil {
		return
	}
	switch status := resp.StatusCode; {
	case status >= 500, status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status == http.StatusConflict:
		b.ledger.note("handshake: %d", status)
	default:
		b.ledger.problem("handshake: %d %s", status, harness.Body(resp))
	}
}

func (b *browser) handle(m harness.Received) {
	var payload struct {
		Recovered *bool
		Code      string
	}
	if object, _ := m.Payload(); object != nil {
		_ = json.Unmarshal(*object, &payload) // those of other frames are not used
	}
	switch m.Type {
	case wire.TypeChat:
		b.ledger.receive(m.MessageID, m.StreamID)
	case wire.TypeReconnect:
		if payload.Recovered != nil && !*payload.Recovered {
			b.ledger.lossReported(b.Session, false)
		}
	case wire.TypeError:
		b.ledger.note("error frame %s", payload.Code)
	default:
		b.ledger.problem("unexpected frame %s", m.Raw)
	}
}
