package channel

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// value returns the value of a counter or gauge.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

func TestRunOffersUnclaimedSessions(t *testing.T) {
	for name, tt := range map[string]struct {
		claim   *Claim
		err     error
		offered int // after one interval
		metrics [3]float64
	}{
		"claimed":           {&Claim{Claimed: true}, nil, 0, [3]float64{1, 0, 0}},
		"ended":             {nil, nil, 0, [3]float64{}},
		"not offered":       {&Claim{Waiting: time.Hour}, nil, 1, [3]float64{0, 1, 5}}, // the browser waits for 5 s only
		"offered":           {&Claim{Offered: true, Waiting: 3 * time.Second}, nil, 0, [3]float64{0, 1, 3}},
		"store unavailable": {&Claim{}, errors.New("unavailable"), 0, [3]float64{}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &memory{outcome: Owned, claimed: true, complete: true}
				connection, socket := openConnection(t, m, "")
				connection.Start(socket)
				connection.Heartbeat(t.Context()) // as with the first ping
				m.claimed, m.claim, m.err = false, tt.claim, tt.err
				m.mustOffer = true
				s := connection.service
				go s.Run(t.Context())
				time.Sleep(claimInterval)
				synctest.Wait()
				got := [3]float64{value(t, s.metrics.claimed), value(t, s.metrics.waiting), value(t, s.metrics.oldestWait)}
				if m.offered != tt.offered || got != tt.metrics {
					t.Errorf("offered %d times, metrics %v; want %d, %v", m.offered, got, tt.offered, tt.metrics)
				}
				m.err = nil
				connection.Close()
				time.Sleep(claimInterval)
				synctest.Wait()
				if n := value(t, s.metrics.waiting); n != 0 {
					t.Errorf("%v sessions wait after the connection was closed, want 0", n)
				}
			})
		})
	}
}

func TestExpiredClaimsAreCounted(t *testing.T) {
	m := &memory{outcome: Owned, claimed: true}
	c, socket := openConnection(t, m, "")
	c.Start(socket)
	m.claimed, m.mustOffer, m.expired = false, true, true
	c.Heartbeat(t.Context())
	m.expired = false
	c.Heartbeat(t.Context())
	if expired, offers := value(t, c.service.metrics.expired), value(t, c.service.metrics.offers); expired != 1 || offers != 2 {
		t.Errorf("%v expired claims and %v offers, want 1 and 2", expired, offers)
	}
}

func TestReofferUsesStoredOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		s := NewService(m, m, Limits{PingIntervalMs: 1000}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		s.Reoffer([]byte(`{"sessionId":"ses_1","expiresAt":99999999999999}`))
		s.Reoffer([]byte(`broken`))
		synctest.Wait()
		if n := value(t, s.metrics.offers); n != 1 || m.offered != 1 {
			t.Errorf("offered %d times, counted %v; want 1", m.offered, n)
		}
	})
}

// A message of the runtime that is not one JSON object never reaches the browser,
// and does not delay the messages behind it.
func TestInvalidMessagesAreDropped(t *testing.T) {
	var log strings.Builder
	m := &memory{complete: true}
	c, socket := openConnection(t, m, "")
	c.service.log = slog.New(slog.NewTextHandler(&log, nil))
	c.Start(socket)
	ready := len(socket.frames)
	list := []string{`{"type":"chat","chat":{"n":1}}`, `{"secret":`, `[1]`, "{\"a\":\"\xff\"}", `{} {}`, `{ }`, ``, `{"type":"chat","chat":{"n":2}}`}
	for i, json := range list {
		c.Messages(at(i), []Message{{at(i + 1), []byte(json)}})
	}
	c.Audio([]byte(`nothing`))
	if got := strings.Join(socket.frames[ready:], "\n"); strings.Count(got, "\n") != 2 || socket.numbers() != "1 2" ||
		!strings.Contains(got, "\n"+`{"streamId":"`+at(6).String()+`"}`+"\n") {
		t.Errorf("the browser received %s, want messages 1, 2 and an empty object", got)
	}
	if n := value(t, c.service.metrics.dropped); n != 6 || strings.Count(log.String(), "\n") != 6 || strings.Contains(log.String(), "secret") {
		t.Errorf("%v messages counted as dropped, want 6 in the log, without content:\n%s", n, log.String())
	}
	if c.position != at(len(list)) {
		t.Errorf("position %v, want that of the last message", c.position)
	}
}
