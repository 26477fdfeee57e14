package auth_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/auth"
)

// discard returns a logger without output.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestLastUseIsWrittenInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestStore(t)
		_, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
		a := newTestAuthenticator(m, time.Now)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()

		for range 1000 {
			if _, err := a.APIKey(t.Context(), presented); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		last := time.Now().Add(-time.Millisecond)
		a.RecordUse("another", last)
		synctest.Wait()
		if len(m.written()) != 0 {
			t.Fatal("written before the batch was due")
		}
		time.Sleep(auth.FlushInterval)
		synctest.Wait()
		written := m.written()
		if len(written) != 1 || len(written[0]) != 2 || !written[0]["another"].Equal(last) {
			t.Fatalf("wrote batches %v, want one with both keys", written)
		}
		for id, at := range written[0] {
			if !at.Equal(last) {
				t.Errorf("%s last used %v, want %v", id, at, last)
			}
		}
		time.Sleep(3 * auth.FlushInterval)
		synctest.Wait()
		if len(m.written()) != 1 {
			t.Error("an empty batch was written")
		}
		stop()
		<-done
	})
}

func TestRejectedCredentialIsNotAUse(t *testing.T) {
	m := newTestStore(t)
	_, presented := createKey(t, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	a := newTestAuthenticator(m, time.Now)
	_, err := a.APIKey(t.Context(), presented[:len(presented)-1]+flip(presented[len(presented)-1]))
	wantUnauthorized(t, err)
	a.Flush(t.Context())
	if len(m.touched) != 0 {
		t.Errorf("wrote last uses %v, want none", m.touched)
	}
}

func TestLastUseIsWrittenAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTestStore(t)
		a := newTestAuthenticator(m, time.Now)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		synctest.Wait()
		a.RecordUse("k", time.Now())
		stop()
		<-done
		if len(m.touched) != 1 {
			t.Errorf("written %d times, want 1", len(m.touched))
		}
	})
}

// hookedStore is a store that calls onFirstWrite during its first write.
type hookedStore struct {
	*testStore
	onFirstWrite func()
}

func (s *hookedStore) TouchKeys(ctx context.Context, used map[string]time.Time) error {
	if hook := s.onFirstWrite; hook != nil {
		s.onFirstWrite = nil
		hook()
	}
	return s.testStore.TouchKeys(ctx, used)
}

func TestUseDuringFinalWriteIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hookedStore{testStore: newTestStore(t)}
		a := auth.NewAuthenticator(store, nil, nil, discard(), time.Now)
		ctx, stop := context.WithCancel(t.Context())
		store.onFirstWrite = func() { a.RecordUse("l", time.Now()); stop() }
		a.RecordUse("k", time.Now())
		a.Run(ctx)
		all := map[string]time.Time{}
		for _, batch := range store.written() {
			maps.Copy(all, batch)
		}
		if len(all) != 2 {
			t.Errorf("wrote last uses %v, want those of k and l", all)
		}
	})
}

func TestLastUseIsRetriedAndLogged(t *testing.T) {
	m := newTestStore(t)
	m.outage = errors.New("database unavailable")
	var log bytes.Buffer
	a := auth.NewAuthenticator(m, nil, nil, slog.New(slog.NewTextHandler(&log, nil)), time.Now)
	first, later := time.Now(), time.Now().Add(time.Second)
	a.RecordUse("k", first)
	a.RecordUse("l", first)
	a.Flush(t.Context())
	if !strings.Contains(log.String(), "database unavailable") {
		t.Errorf("logged %q, want the error", log.String())
	}
	m.outage = nil
	a.RecordUse("l", later)
	a.Flush(t.Context())
	written := m.written()
	if last := written[len(written)-1]; !last["k"].Equal(first) || !last["l"].Equal(later) {
		t.Errorf("batches %v, want the last with k at %v and l at %v", written, first, later)
	}
}
