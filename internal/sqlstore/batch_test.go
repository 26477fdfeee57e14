package sqlstore

import (
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/test/testkit"
)

// startProxy starts a proxy for a server. request and response return the data to pass on
// instead of the data that was received.
func startProxy(t *testing.T, server string, request, response func([]byte) []byte) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			go pass(client, upstream, request)
			go pass(upstream, client, response)
		}
	}()
	return listener.Addr().String()
}

// pass copies data after editing it.
func pass(from, to net.Conn, edit func([]byte) []byte) {
	defer to.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if _, err := to.Write(edit(buffer[:n])); err != nil {
			return
		}
	}
}

// With a round trip of a millisecond, thousands of single updates would exceed
// the timeout.
func TestBatchTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testkit.SharedPostgres(t).NewDatabase(t))
	testkit.Must(t, err)
	var roundTrips atomic.Int64 // requests that follow a response
	var answered atomic.Bool
	address.Host = startProxy(t, address.Host, func(b []byte) []byte {
		if answered.Swap(false) {
			roundTrips.Add(1)
		}
		return b
	}, func(b []byte) []byte { answered.Store(true); return b })
	s := open(t, Options{DSN: redact.Secret(address.String())})
	testkit.Must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	testkit.Must(t, s.CreateKey(t.Context(), auth.Key{ID: "k999", TeamID: "t1", CreatedAt: testTime}))
	lastUsed := map[string]time.Time{}
	for i := range 1000 {
		lastUsed[fmt.Sprint("k", i)] = testTime
	}
	before := roundTrips.Load()
	testkit.Must(t, s.TouchKeys(t.Context(), lastUsed))
	if trips := roundTrips.Load() - before; trips > 100 {
		t.Errorf("%d updates took %d round trips, want at most 100", len(lastUsed), trips)
	}
	if k, err := s.Key(t.Context(), "k999"); err != nil || !k.LastUsedAt.Equal(testTime) {
		t.Errorf("key last used at %v, %v; want %v", k.LastUsedAt, err, testTime)
	}
}

func TestBatchIsAtomic(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		testkit.Must(t, s.CreateKey(t.Context(), auth.Key{ID: "k1", TeamID: "t1", CreatedAt: testTime}))
		for name, invalid := range map[string][]any{"constraint violation": {"k1", nil}, "invalid text": {"k\x00", "new"}} {
			_, err := s.execBatch(t.Context(), "rename", `UPDATE api_keys SET name = CAST($2 AS TEXT) WHERE id = $1`, []any{"k1", "new"}, invalid)
			if k, _ := s.Key(t.Context(), "k1"); err == nil || k.Name != "" {
				t.Errorf("%s: error %v, name %q; want an error and no change", name, err, k.Name)
			}
		}
	})
}

func TestStatementAfterClose(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		testkit.Must(t, s.Close())
		if _, err := s.Session(t.Context(), "s1"); err == nil || fault.Is(err, fault.NotFound) {
			t.Errorf("read after Close: %v, want another error than NOT_FOUND", err)
		}
	})
}
