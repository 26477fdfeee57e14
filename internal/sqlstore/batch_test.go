package sqlstore

import (
	"bytes"
	"context"
	"encoding/binary"
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
	"telapi/test/testkit"
)

// startProxy starts a proxy for a server. request and response return the data to pass on
// instead of the data that was received.
func startProxy(t *testing.T, server string, request, response func([]byte) []byte) (address string) {
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
	must(t, err)
	var roundTrips atomic.Int64 // requests that follow a response
	var answered atomic.Bool
	address.Host = startProxy(t, address.Host, func(b []byte) []byte {
		if answered.Swap(false) {
			roundTrips.Add(1)
		}
		return b
	}, func(b []byte) []byte { answered.Store(true); return b })
	s := open(t, Options{DSN: redact.Secret(address.String())})
	must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	must(t, s.CreateKey(t.Context(), auth.Key{ID: "k999", TeamID: "t1", CreatedAt: testTime}))
	lastUsed := map[string]time.Time{}
	for i := range 1000 {
		lastUsed[fmt.Sprint("k", i)] = testTime
	}
	before := roundTrips.Load()
	must(t, s.TouchKeys(t.Context(), lastUsed))
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
					created, err := s.CreateSession(ctx, newSession(id), session.IdempotencyRecord{}, time.Time{})
					redeem := s.RedeemSession(ctx, id, testTime)
					got, read := s.Session(ctx, id)
					if err := errors.Join(err, redeem, read); err != nil || !created || got.ID != id || !got.RedeemedAt.Equal(testTime) {
						t.Errorf("session %+v, created %t, %v; want %s, redeemed", got, created, err, id)
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
	testkit.Until(t, "a statement that waits for a locked row", func() bool {
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

func TestCanceledWriteDoesNotWaitForConnection(t *testing.T) {
	s := open(t, engines[1].make(t)) // PostgreSQL: SQLite does not run batches
	must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	addSession(t, s, newSession("s1"))
	s.write.SetMaxOpenConns(1)
	only, err := s.write.Conn(t.Context())
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	redeemed := make(chan error, 1)
	go func() { redeemed <- s.RedeemSession(ctx, "s1", testTime) }()
	testkit.Until(t, "a statement that waits for a connection", func() bool { return s.write.Stats().WaitCount > 0 })
	start := time.Now()
	cancel()
	if err := <-redeemed; !errors.Is(err, context.Canceled) || time.Since(start) > statementTimeout/2 {
		t.Errorf("error %v after %v, want context.Canceled after %v", err, time.Since(start), resultWait)
	}
	must(t, only.Close())
	addSession(t, s, newSession("s2")) // after the canceled write, if it ran
	if got := getSession(t, s, "s1"); !got.RedeemedAt.IsZero() {
		t.Errorf("redeemed at %v by a canceled write", got.RedeemedAt)
	}
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

func TestLockedTableBlocksNoOtherRead(t *testing.T) {
	options := engines[1].make(t)                  // PostgreSQL: SQLite does not lock tables
	options.DSN += "?default_query_exec_mode=exec" // a statement that must be prepared first would wait for the lock
	s := open(t, options)
	must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	addSession(t, s, newSession("s1"))
	tx, err := s.write.BeginTx(t.Context(), nil)
	must(t, err)
	_, err = tx.ExecContext(t.Context(), "LOCK TABLE tts_media_cache")
	must(t, err)
	var blocked sync.WaitGroup
	for range 2 * batchWorkers {
		blocked.Go(func() {
			if _, err := s.Recording(t.Context(), "unknown"); !fault.Is(err, fault.NotFound) {
				t.Error(err)
			}
		})
	}
	awaitLockedStatement(t, s)
	getSession(t, s, "s1")
	must(t, tx.Rollback())
	blocked.Wait()
}

func TestWriteOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	t.Parallel()
	address, err := url.Parse(testkit.SharedPostgres(t).NewDatabase(t))
	must(t, err)
	var writes atomic.Int64 // 2 after the response to the first one was replaced
	address.Host = startProxy(t, address.Host, func(b []byte) []byte {
		if bytes.Contains(b, []byte("ses_lost")) {
			writes.CompareAndSwap(0, 1)
		}
		return b
	}, func(b []byte) []byte {
		if writes.CompareAndSwap(1, 2) { // as PgBouncer does when it has lost the server
			const failure = "SFATAL\x00VFATAL\x00C08P01\x00Mserver conn crashed?\x00\x00"
			return append(binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(failure))), failure...)
		}
		return b
	})
	s := open(t, Options{DSN: redact.Secret(address.String())})
	must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	// If the write ran again, it would fail because the session exists.
	if _, err := s.CreateSession(t.Context(), newSession("ses_lost"), session.IdempotencyRecord{}, time.Time{}); !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("error %v, want SERVICE_UNAVAILABLE", err)
	}
}

func TestCloseEndsWriteInProgress(t *testing.T) {
	options := engines[1].make(t) // PostgreSQL: SQLite does not run batches
	s, other := open(t, options), open(t, options)
	must(t, s.Migrate(t.Context()))
	newTeam(t, s, "t1")
	addSession(t, s, newSession("s1"))
	unlock := lockSession(t, other, "s1")
	redeemed := make(chan error, 1)
	go func() { redeemed <- s.RedeemSession(t.Context(), "s1", testTime) }()
	awaitLockedStatement(t, other)
	must(t, s.Close())
	unlock() // the write would succeed if it ran again
	if err := <-redeemed; !fault.Is(err, fault.ServiceUnavailable) {
		t.Errorf("error %v, want SERVICE_UNAVAILABLE", err)
	}
}

func TestStatementAfterClose(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		must(t, s.Close())
		if _, err := s.Session(t.Context(), "s1"); err == nil || fault.Is(err, fault.NotFound) {
			t.Errorf("read after Close: %v, want another error than NOT_FOUND", err)
		}
	})
}
