package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/session"
	"telapi/test/poll"
	"telapi/test/servers"
)

// countingProxy is a proxy that counts round trips: requests that follow a response.
type countingProxy struct {
	roundTrips atomic.Int64
	answered   atomic.Bool
}

func (p *countingProxy) start(t *testing.T, server string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
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
			go pass(client, upstream, func() {
				if p.answered.Swap(false) {
					p.roundTrips.Add(1)
				}
			})
			go pass(upstream, client, func() { p.answered.Store(true) })
		}
	}()
	return listener.Addr().String()
}

// pass copies data and calls onRead for each read.
func pass(from, to net.Conn, onRead func()) {
	defer to.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		onRead()
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// With a round trip of a millisecond, thousands of single updates would exceed
// the timeout.
func TestBatchTakesFewRoundTrips(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(servers.SharedPostgres(t).NewDatabase(t))
	must(t, err)
	var proxy countingProxy
	address.Host = proxy.start(t, address.Host)
	s := open(t, Options{DSN: redact.Secret(address.String())})
	must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	must(t, s.CreateKey(t.Context(), auth.Key{ID: "k999", TeamID: "t1", CreatedAt: testTime}))
	lastUsed := map[string]time.Time{}
	for i := range 1000 {
		lastUsed[fmt.Sprint("k", i)] = testTime
	}
	before := proxy.roundTrips.Load()
	must(t, s.TouchKeys(t.Context(), lastUsed))
	if trips := proxy.roundTrips.Load() - before; trips > 100 {
		t.Errorf("%d updates took %d round trips, want at most 100", len(lastUsed), trips)
	}
	if k, err := s.Key(t.Context(), "k999"); err != nil || !k.LastUsedAt.Equal(testTime) {
		t.Errorf("key last used at %v, %v; want %v", k.LastUsedAt, err, testTime)
	}
}

func TestBatchIsAtomic(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		must(t, s.CreateKey(t.Context(), auth.Key{ID: "k1", TeamID: "t1", CreatedAt: testTime}))
		for name, invalid := range map[string][]any{"constraint violation": {"k1", nil}, "invalid text": {"k\x00", "new"}} {
			_, err := s.execBatch(t.Context(), "rename", `UPDATE api_keys SET name = CAST($2 AS TEXT) WHERE id = $1`, []any{"k1", "new"}, invalid)
			if k, _ := s.Key(t.Context(), "k1"); err == nil || k.Name != "" {
				t.Errorf("%s: error %v, name %q; want an error and no change", name, err, k.Name)
			}
		}
	})
}

func TestConcurrentStatementsHaveOwnResults(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		addSession(t, s, newSession("taken"))
		var callers sync.WaitGroup
		for i := range 200 {
			callers.Go(func() {
				id := fmt.Sprint("s", i)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch i % 4 {
				case 0:
					addSession(t, s, newSession(id))
					must(t, s.RedeemSession(ctx, id, testTime))
					if got := getSession(t, s, id); got.ID != id || !got.RedeemedAt.Equal(testTime) {
						t.Errorf("session %+v, want %s, redeemed", got, id)
					}
				case 1:
					if created, err := s.CreateSession(ctx, newSession("taken"), session.IdempotencyRecord{}, time.Time{}); created || !fault.Is(err, fault.Validation) {
						t.Errorf("duplicate ID: %v, %v; want VALIDATION_ERROR", created, err)
					}
				case 2:
					_, err := s.Session(ctx, id)
					if update := s.RedeemSession(ctx, id, testTime); !fault.Is(err, fault.NotFound) || !fault.Is(update, fault.NotFound) {
						t.Errorf("unknown session: read %v, update %v; want NOT_FOUND", err, update)
					}
				case 3:
					cancel()
					if _, err := s.Session(ctx, "taken"); !errors.Is(err, context.Canceled) {
						t.Errorf("canceled read: %v, want context.Canceled", err)
					}
				}
			})
		}
		callers.Wait()
	})
}

// lockSession locks the row of a session until the returned function is called.
func lockSession(t *testing.T, s *Store, id string) (unlock func()) {
	t.Helper()
	tx, err := s.write.BeginTx(t.Context(), nil)
	must(t, err)
	_, err = tx.ExecContext(t.Context(), "UPDATE sessions SET last_seen_at = 1 WHERE id = $1", id)
	must(t, err)
	return func() { must(t, tx.Rollback()) }
}

func awaitLockedStatement(t *testing.T, s *Store) {
	t.Helper()
	poll.Until(t, "a statement that waits for a locked row", func() bool {
		var waiting int
		must(t, s.read.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&waiting))
		return waiting > 0
	})
}

func TestFailedWriteHasNoEffectLater(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		newTeam(t, s, "t1")
		addSession(t, s, newSession("s1"))
		unlock := lockSession(t, s, "s1")
		ctx, cancel := context.WithCancel(t.Context())
		redeemed := make(chan error, 1)
		go func() { redeemed <- s.RedeemSession(ctx, "s1", testTime) }()
		if s.writes != nil {
			awaitLockedStatement(t, s)
		}
		cancel()
		unlock()
		err := <-redeemed
		if got := getSession(t, s, "s1"); got.RedeemedAt.IsZero() != (err != nil) {
			t.Errorf("redeemed at %v after the error %v", got.RedeemedAt, err)
		}
	})
}

func TestLockedRowBlocksNoOtherWrite(t *testing.T) {
	s := open(t, engines[1].make(t)) // PostgreSQL: SQLite has one writer at a time
	must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	addSession(t, s, newSession("locked"))
	addSession(t, s, newSession("other"))
	unlock := lockSession(t, s, "locked")
	var blocked sync.WaitGroup
	for range 2 * batchWorkers {
		blocked.Go(func() {
			if err := s.RedeemSession(t.Context(), "locked", testTime); err != nil {
				t.Error(err)
			}
		})
	}
	awaitLockedStatement(t, s)
	must(t, s.RedeemSession(t.Context(), "other", testTime))
	unlock()
	blocked.Wait()
}

func TestStatementAfterClose(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		must(t, s.Close())
		if _, err := s.Session(t.Context(), "s1"); err == nil || fault.Is(err, fault.NotFound) {
			t.Errorf("read after Close: %v, want another error than NOT_FOUND", err)
		}
	})
}
