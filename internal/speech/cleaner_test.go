package speech_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/fault"
	"telapi/internal/speech"
	"telapi/test/sqlite"
	"telapi/test/testkit"
)

// retention is how long cleaners in tests keep unused recordings.
const retention = 90 * 24 * time.Hour

func hashOf(n int) string { return speech.Hash("t", fmt.Sprint(n), 8000, speech.Utterance{}) }

func pathOf(n int, e speech.Encoding) string { return speech.BlobPath(hashOf(n), e) }

// add stores a recording with old blobs.
func (e *env) add(t *testing.T, hash string, expires time.Time, encodings ...speech.Encoding) {
	t.Helper()
	e.addRecording(t, speech.Recording{Hash: hash, CreatedAt: e.now().Add(-48 * time.Hour), ExpiresAt: expires}, encodings...)
}

func (e *env) addRecording(t *testing.T, r speech.Recording, encodings ...speech.Encoding) {
	t.Helper()
	r.Variants = map[speech.Encoding]string{}
	for _, enc := range encodings {
		r.Variants[enc] = "sum"
		e.blobs.Set(speech.BlobPath(r.Hash, enc), nil, r.CreatedAt)
	}
	testkit.Must(t, testkit.ErrorOf(e.SaveRecording(t.Context(), r)))
}

// recordings returns the encodings of all recordings by hash.
func (e *env) recordings(t *testing.T) map[string]string {
	t.Helper()
	list, err := e.ListRecordings(t.Context(), speech.RecordingFilter{}, "", 100_000)
	testkit.Must(t, err)
	all := map[string]string{}
	for _, r := range list {
		all[r.Hash] = fmt.Sprint(slices.Sorted(maps.Keys(r.Variants)))
	}
	return all
}

func (e *env) cleaner(blobs speech.BlobStore, now func() time.Time) *speech.Cleaner {
	return speech.NewCleaner(e, blobs, e.leases, retention, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), now)
}

// A cleanup of thousands of recordings and blobs in all possible states removes
// exactly those that it should, and a dry run reports the same.
func TestCleanupRemovesOnlyUnusedItems(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2 {
		e, want := newEnv(t), map[string]string{}                   // reasons of removals by path
		recordings, blobs := map[string]string{}, map[string]bool{} // that remain
		keep := func(hash string, encodings ...speech.Encoding) {
			recordings[hash] = fmt.Sprint(encodings)
			for _, enc := range encodings {
				blobs[speech.BlobPath(hash, enc)] = true
			}
		}
		now := e.now()
		for n := range 700 + random.IntN(700) {
			hash, alaw, pcm := hashOf(n), pathOf(n, speech.ALaw), pathOf(n, speech.PCM)
			switch kind := random.IntN(16); {
			case n == 0 || kind < 5:
				encodings := speech.Encodings[:1+random.IntN(2)]
				e.add(t, hash, time.Time{}, encodings...)
				keep(hash, encodings...)
			case kind == 5: // not expired yet
				e.add(t, hash, now.Add(time.Second), speech.PCM)
				keep(hash, speech.PCM)
			case kind == 6:
				e.add(t, hash, now.Add(-time.Second), speech.ALaw, speech.PCM)
				want[alaw], want[pcm] = speech.Expired, speech.Expired
			case kind == 7: // expired, one blob already deleted
				e.add(t, hash, now, speech.ALaw, speech.PCM)
				e.blobs.Delete(pcm)
				want[alaw], want[pcm] = speech.Expired, speech.Expired
			case kind == 8:
				e.blobs.Set(pcm, nil, now.Add(-speech.OrphanAge))
				want[pcm] = speech.Orphan
			case kind == 9: // too new to be an orphan
				e.blobs.Set(alaw, nil, now.Add(1-speech.OrphanAge))
				blobs[alaw] = true
			case kind == 10: // orphan next to another variant
				e.add(t, hash, time.Time{}, speech.PCM)
				keep(hash, speech.PCM)
				e.blobs.Set(alaw, nil, time.Time{})
				want[alaw] = speech.Orphan
			case kind == 11: // one of two blobs was evicted
				e.add(t, hash, time.Time{}, speech.ALaw, speech.PCM)
				keep(hash, speech.PCM)
				e.blobs.Delete(alaw)
				want[alaw] = speech.Lost
			case kind == 12:
				e.addRecording(t, speech.Recording{Hash: hash, CreatedAt: now.Add(-retention)}, speech.PCM)
				want[pcm] = speech.Unused
			case kind == 13: // not requested for the retention
				e.addRecording(t, speech.Recording{Hash: hash, CreatedAt: now.Add(-2 * retention), UsedAt: now.Add(-retention)}, speech.ALaw, speech.PCM)
				want[alaw], want[pcm] = speech.Unused, speech.Unused
			case kind == 14: // requested later
				e.addRecording(t, speech.Recording{Hash: hash, CreatedAt: now.Add(-2 * retention), UsedAt: now.Add(time.Millisecond - retention)}, speech.PCM)
				keep(hash, speech.PCM)
			case kind == 15: // not requested for the retention, but has an expiry in the future
				e.addRecording(t, speech.Recording{Hash: hash, CreatedAt: now.Add(-2 * retention), ExpiresAt: now.Add(time.Second)}, speech.PCM)
				keep(hash, speech.PCM)
			}
		}
		for _, unrelated := range []string{"ab/hello.pcm", "zz/" + hashOf(1) + ".pcm", hashOf(2)[:2] + "/" + strings.ToUpper(hashOf(2)) + ".alaw"} {
			e.blobs.Set(unrelated, nil, time.Time{})
			blobs[unrelated] = true
		}
		recordingsBefore, blobsBefore := e.recordings(t), e.blobs.Paths()
		for _, dryRun := range []bool{true, false} {
			reported := map[string]string{}
			testkit.Must(t, e.cleaner(e.blobs, e.now).Clean(t.Context(), dryRun, func(r speech.Removal) { reported[r.Path] = r.Reason }))
			if !maps.Equal(reported, want) {
				t.Errorf("dry run %v: %d removals reported, want %d", dryRun, len(reported), len(want))
			}
			if dryRun && (!maps.Equal(e.recordings(t), recordingsBefore) || !slices.Equal(e.blobs.Paths(), blobsBefore)) {
				t.Fatal("the dry run removed something")
			}
		}
		if got := e.recordings(t); !maps.Equal(got, recordings) {
			t.Errorf("%d recordings remain, want %d", len(got), len(recordings))
		}
		if got := e.blobs.Paths(); !slices.Equal(got, slices.Sorted(maps.Keys(blobs))) {
			t.Errorf("%d blobs remain, want %d", len(got), len(blobs))
		}
		if _, release, held, _ := e.leases.Try(t.Context(), speech.CleanupLease); !held {
			t.Error("the cleanup lease was not released")
		} else {
			release()
		}
	}
}

// A retention of 0 keeps recordings without an expiry.
func TestCleanupKeepsUnusedRecordingsWithoutRetention(t *testing.T) {
	e := newEnv(t)
	e.addRecording(t, speech.Recording{Hash: hashOf(0), CreatedAt: time.UnixMilli(1)}, speech.PCM)
	cleaner := speech.NewCleaner(e, e.blobs, e.leases, 0, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), e.now)
	if err := cleaner.Clean(t.Context(), false, func(r speech.Removal) { t.Errorf("removed: %+v", r) }); err != nil || len(e.recordings(t)) != 1 {
		t.Errorf("recordings %v remain, want one: %v", e.recordings(t), err)
	}
}

// failWith makes all operations on blobs fail.
func failWith(err error) func(operation, path string, content []byte) error {
	return func(string, string, []byte) error { return err }
}

func TestCleanupRemovesNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(t *testing.T, e *env, b *hookedBlobs)
		want    error
	}{
		"media service unavailable":   {func(_ *testing.T, _ *env, b *hookedBlobs) { b.before = failWith(speech.ErrBlobsUnavailable) }, speech.ErrBlobsUnavailable},
		"wrong media service address": {func(_ *testing.T, _ *env, b *hookedBlobs) { b.before = failWith(speech.ErrBlobNotFound) }, speech.ErrBlobNotFound},
		"another cleanup running": {func(t *testing.T, e *env, _ *hookedBlobs) {
			_, release, _, _ := e.leases.Try(t.Context(), speech.CleanupLease)
			t.Cleanup(release)
		}, speech.ErrCleanupRunning},
		"volume not mounted": {func(t *testing.T, e *env, _ *hookedBlobs) {
			e.blobs.Delete(e.blobs.Paths()...)
			testkit.Must(t, e.DeleteVariant(t.Context(), hashOf(1), speech.PCM, "sum"))
		}, nil},
		"wrong database": {func(t *testing.T, e *env, _ *hookedBlobs) { e.Store = sqlite.Open(t, t.TempDir()) }, nil},
		"media service fails during the cleanup": {func(_ *testing.T, _ *env, b *hookedBlobs) {
			b.before = func(operation, _ string, _ []byte) error {
				if operation != "delete" {
					return nil
				}
				b.before = failWith(speech.ErrBlobsUnavailable)
				return speech.ErrBlobsUnavailable
			}
		}, speech.ErrBlobsUnavailable},
		"blob replaced during the cleanup": {func(_ *testing.T, e *env, b *hookedBlobs) {
			b.before = func(operation, path string, _ []byte) error {
				if operation == "delete" {
					e.blobs.Set(path, nil, e.now().Add(1))
				}
				return nil
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.add(t, hashOf(0), time.Time{}, speech.PCM)
			e.add(t, hashOf(1), e.now(), speech.PCM)
			e.blobs.Set(pathOf(2, speech.PCM), nil, time.Time{})
			b := &hookedBlobs{e.blobs, failWith(nil)}
			tt.prepare(t, e, b)
			recordings, blobs := e.recordings(t), e.blobs.Paths()
			err := e.cleaner(b, e.now).Clean(t.Context(), false, func(r speech.Removal) { t.Errorf("removed: %+v", r) })
			if !errors.Is(err, tt.want) || !maps.Equal(e.recordings(t), recordings) || !slices.Equal(e.blobs.Paths(), blobs) {
				t.Errorf("error %v, want %v; recordings %v, want %v; blobs %v, want %v", err, tt.want, e.recordings(t), recordings, e.blobs.Paths(), blobs)
			}
		})
	}
}

func TestCleanupWithoutLeases(t *testing.T) {
	e := newEnv(t)
	e.add(t, hashOf(0), time.Time{}, speech.PCM)
	e.add(t, hashOf(1), e.now(), speech.PCM)
	removed := 0
	cleaner := speech.NewCleaner(e, e.blobs, nil, retention, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), e.now)
	if err := cleaner.Clean(t.Context(), false, func(speech.Removal) { removed++ }); err != nil || removed != 1 {
		t.Errorf("%d items removed, %v; want 1", removed, err)
	}
}

// One of several instances cleans up every minute. When it stops, another does.
func TestOneInstanceCleansUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, callsA, callsB := newEnv(t), new(atomic.Int64), new(atomic.Int64)
		start := func(calls *atomic.Int64) (stop func()) { // counts uses of the clock
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			c := e.cleaner(e.blobs, func() time.Time { calls.Add(1); return time.Now() })
			go func() { defer close(done); c.Run(ctx) }()
			synctest.Wait()
			return func() { cancel(); <-done }
		}
		e.clock.Store(time.Now().UnixNano())
		stopA, stopB := start(callsA), start(callsB)
		e.add(t, hashOf(0), time.Time{}, speech.PCM)
		e.add(t, hashOf(1), time.Now().Add(30*time.Second), speech.PCM)
		e.blobs.Set(pathOf(1, speech.PCM), nil, time.Now())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(e.recordings(t)) != 1 || len(e.blobs.Paths()) != 1 || callsB.Load() != 0 {
			t.Errorf("second instance: %d calls, want 0; recordings %v and blobs %v remain, want one each", callsB.Load(), e.recordings(t), e.blobs.Paths())
		}
		stopA()
		e.blobs.Set(pathOf(2, speech.PCM), nil, time.Now())
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if callsB.Load() == 0 || len(e.blobs.Paths()) != 1 {
			t.Errorf("second instance: %d calls, want some; blobs %v remain, want one", callsB.Load(), e.blobs.Paths())
		}
		stopB()
	})
}

// The database logs its own outage, for example before its migration.
func TestCleanerLogsErrorsThatStoresDoNotLog(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		logged bool
	}{
		"database not ready":        {fault.Unavailable("The database", errors.New("not migrated yet")), false},
		"media service unavailable": {speech.ErrBlobsUnavailable, true},
		"invalid response":          {errors.New("line 1: invalid JSON"), true},
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			e := newEnv(t)
			b := &hookedBlobs{e.blobs, failWith(tt.err)}
			var log strings.Builder
			ctx, cancel := context.WithTimeout(t.Context(), speech.ExpireInterval/2)
			defer cancel()
			speech.NewCleaner(e, b, e.leases, retention, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry(), time.Now).CleanPeriodically(ctx)
			if strings.Contains(log.String(), "cleanup failed") != tt.logged {
				t.Errorf("logged %q; want a failure: %v", log.String(), tt.logged)
			}
		})
	}
}
