package ratelimit

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/audit"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

// fakeStore is a limits store in memory that can fail. It passes the tests of
// package conformance.
type fakeStore struct {
	mu         sync.Mutex
	value      []byte
	err        error
	writes     int
	concurrent []byte // saved by another administrator during the next SaveLimits
}

// replaceWith returns a change that replaces the limits.
func replaceWith(limits Limits) func(Limits) (Limits, error) {
	return func(Limits) (Limits, error) { return limits, nil }
}

func (s *fakeStore) put(value string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.value = []byte(value)
}

func (s *fakeStore) Limits(context.Context) ([]byte, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value, s.value != nil, s.err
}

func (s *fakeStore) SaveLimits(_ context.Context, old, value []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.concurrent != nil {
		s.value, s.concurrent = s.concurrent, nil
	}
	if s.err != nil || !bytes.Equal(s.value, old) {
		return false, s.err
	}
	s.write(value)
	return true, nil
}

func (s *fakeStore) write(value []byte) {
	s.value = value
	s.writes++
}

type fakeMirror struct {
	fakeStore
	hangs     bool // until its context ends
	commitErr error
	entries   []audit.Entry
}

func (s *fakeMirror) Setting(ctx context.Context, _ string) ([]byte, bool, error) {
	if s.hangs {
		<-ctx.Done()
		return nil, false, ctx.Err()
	}
	return s.Limits(ctx)
}

func (s *fakeMirror) SaveSetting(ctx context.Context, _ string, value []byte) error {
	if s.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.write(value)
	}
	return s.err
}

func (s *fakeMirror) ChangeSetting(ctx context.Context, name string, value []byte, e audit.Entry, confirm func(context.Context) error) error {
	if s.err != nil {
		return s.err
	}
	if err := confirm(ctx); err != nil {
		return err
	}
	if s.commitErr != nil {
		return s.commitErr
	}
	s.entries = append(s.entries, e)
	return s.SaveSetting(ctx, name, value)
}

// settingsFixture is Settings with a fake store, a fake mirror and a log.
type settingsFixture struct {
	*Settings
	store  *fakeStore
	mirror *fakeMirror
	logged *bytes.Buffer
}

func newSettingsFixture(store, mirror string) *settingsFixture {
	f := &settingsFixture{store: &fakeStore{}, mirror: &fakeMirror{}, logged: &bytes.Buffer{}}
	if store != "" {
		f.store.value = []byte(store)
	}
	if mirror != "" {
		f.mirror.value = []byte(mirror)
	}
	f.Settings = NewSettings(f.store, f.mirror, slog.New(slog.NewTextHandler(f.logged, nil)), prometheus.NewRegistry())
	return f
}

const (
	ten     = `{"tiers":{"api":{"max":10,"windowMs":1000}}}`
	twenty  = `{"tiers":{"api":{"max":20,"windowMs":1000}}}`
	invalid = `{"tiers":{"api":{"max":-1,"windowMs":1000}}}`
)

// A client over the defaults but within the limits must not be rejected by an
// instance that has just started.
func TestDefaultLimitsAreNotEnforcedBeforeFirstLoad(t *testing.T) {
	f := newSettingsFixture(ten, "")
	f.store.err = errors.New("unreachable")
	if limits, err := f.Limits(t.Context()); !errors.Is(err, f.store.err) {
		t.Errorf("store unreachable: limits %+v, error %v, want the store's error", limits, err)
	}
	f.store.err, f.mirror.err = nil, errors.New("unreachable")
	if limits, err := f.Limits(t.Context()); err != nil || limits.Tiers.API.Max != 10 {
		t.Errorf("mirror unreachable: limits %+v, error %v, want 10 API requests", limits, err)
	}
	f.store.err = errors.New("unreachable again")
	if limits, err := f.Limits(t.Context()); err != nil || limits.Tiers.API.Max != 10 {
		t.Errorf("store unreachable after the first load: limits %+v, error %v, want 10 API requests", limits, err)
	}
}

func TestReload(t *testing.T) {
	unreachable := errors.New("unreachable")
	for name, tc := range map[string]struct {
		store, mirror         string
		storeErr, mirrorErr   error
		want                  int64 // API requests per window
		wantErr               bool
		wantStore, wantMirror string // afterwards; empty: not checked
	}{
		"no limits saved: defaults":                              {want: 600},
		"limits in the store: used and mirrored":                 {store: ten, want: 10, wantMirror: ten},
		"store and mirror differ: store wins":                    {store: ten, mirror: twenty, want: 10, wantMirror: ten},
		"store lost the limits: restored from the mirror":        {mirror: ten, want: 10, wantStore: ten},
		"invalid in the store: mirror is used":                   {store: invalid, mirror: ten, want: 10, wantStore: invalid, wantMirror: ten},
		"invalid in the store, mirror empty: defaults":           {store: invalid, want: 600, wantStore: invalid},
		"invalid in both: defaults":                              {store: invalid, mirror: invalid, want: 600, wantStore: invalid, wantMirror: invalid},
		"store lost the limits, invalid in the mirror: defaults": {mirror: invalid, want: 600},
		"store unreachable: no change":                           {store: ten, mirror: twenty, storeErr: unreachable, want: 600, wantErr: true, wantMirror: twenty},
		"mirror unreachable: store is used":                      {store: ten, mirrorErr: unreachable, want: 10, wantErr: true},
		"store lost the limits, mirror unreachable: no change":   {mirrorErr: unreachable, want: 600, wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSettingsFixture(tc.store, tc.mirror)
			f.store.err, f.mirror.err = tc.storeErr, tc.mirrorErr
			if err := f.Reload(t.Context()); (err != nil) != tc.wantErr {
				t.Errorf("Reload returned %v, want an error: %v", err, tc.wantErr)
			}
			testkit.Equal(t, "limit of API requests", f.Current().Tiers.API.Max, tc.want)
			for name, v := range map[string]struct{ got, want string }{
				"store": {string(f.store.value), tc.wantStore}, "mirror": {string(f.mirror.value), tc.wantMirror},
			} {
				if v.want != "" && normalize(v.got) != normalize(v.want) {
					t.Errorf("the %s contains %s, want %s", name, v.got, v.want)
				}
			}
		})
	}
}

// normalize returns the stored form of a valid value.
func normalize(value string) string {
	if limits, err := ParseLimits([]byte(value)); err == nil {
		return string(limits.JSON())
	}
	return value
}

func TestInvalidLimitsAreLoggedOnce(t *testing.T) {
	f := newSettingsFixture(ten, "")
	reload := func(value string) {
		f.store.put(value)
		testkit.Must(t, f.Reload(t.Context()))
	}
	reload(ten)
	for range 3 {
		reload(invalid)
	}
	if f.Current().Tiers.API.Max != 10 {
		t.Error("an invalid value changed the limits")
	}
	if n := strings.Count(f.logged.String(), "invalid rate limits"); n != 1 || testkit.MetricValue(t, f.rejected) != 1 {
		t.Errorf("logged %d times, counted %v; want once each:\n%s", n, testkit.MetricValue(t, f.rejected), f.logged)
	}
	if !strings.Contains(f.logged.String(), "/tiers/api/max") {
		t.Errorf("the log does not contain the path of the invalid member:\n%s", f.logged)
	}
	reload(twenty)
	reload(invalid)
	reload(`not JSON`)
	if n := strings.Count(f.logged.String(), "invalid rate limits"); n != 3 || testkit.MetricValue(t, f.rejected) != 3 {
		t.Errorf("three invalid values were logged %d times, counted %v; want 3 each", n, testkit.MetricValue(t, f.rejected))
	}
	testkit.Equal(t, "limit of API requests", f.Current().Tiers.API.Max, 20)
	f.mirror.err = errors.New("unreachable")
	testkit.NoError(t, "the adopted limits need no mirror", f.Reload(t.Context()))
}

func TestUnchangedLimitsKeepPointerAndMirror(t *testing.T) {
	f := newSettingsFixture(ten, "")
	_ = f.Reload(t.Context())
	before := f.Current()
	f.mirror.err = errors.New("must not be queried")
	for range 3 {
		testkit.Must(t, f.Reload(t.Context()))
	}
	if f.Current() != before || f.mirror.writes != 1 {
		t.Errorf("after reloading the same limits: pointer changed %v, %d writes to the mirror, want 1", f.Current() != before, f.mirror.writes)
	}
}

func TestRunReloadsLimits(t *testing.T) {
	for name, signal := range map[string]func(*Settings){
		"on an announcement":   func(s *Settings) { s.Message("limits") },
		"on subscribing again": func(s *Settings) { s.Down(nil); s.Up() },
		"every five seconds":   func(s *Settings) { s.Message("something else"); time.Sleep(5 * time.Second) },
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			f := newSettingsFixture(ten, "")
			ctx, cancel := context.WithCancel(t.Context())
			go f.Run(ctx)
			synctest.Wait()
			if f.Current().Tiers.API.Max != 10 {
				t.Fatal("limits not loaded at start")
			}
			f.store.put(twenty)
			signal(f.Settings)
			synctest.Wait()
			if f.Current().Tiers.API.Max != 20 {
				t.Error("changed limits not loaded")
			}
			cancel()
		})
	}
}

func TestUnresponsiveDatabaseDoesNotDelayReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSettingsFixture(ten, "")
		f.mirror.hangs = true
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx)
		for _, next := range []string{twenty, ten, twenty} {
			f.store.put(next)
			f.Message(Topic)
			time.Sleep(time.Second)
			if want, _ := ParseLimits([]byte(next)); *f.Current() != want {
				t.Errorf("limit of %d API requests one second after the change, want %d", f.Current().Tiers.API.Max, want.Tiers.API.Max)
			}
		}
	})
}

func TestFailingReloadIsLoggedOnce(t *testing.T) {
	for want, err := range []error{ // the index is the number of log lines: the store logs its own outage
		0: fault.Unavailable("The key-value store", nil),
		1: errors.New("unexpected reply"),
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newSettingsFixture(ten, "")
			f.store.err = err
			ctx, cancel := context.WithCancel(t.Context())
			go f.Run(ctx)
			time.Sleep(time.Minute)
			cancel()
			synctest.Wait()
			if n := strings.Count(f.logged.String(), "reloading the rate limits failed"); n != want {
				t.Errorf("%v: logged %d times, want %d:\n%s", err, n, want, f.logged)
			}
		})
	}
}

func TestChange(t *testing.T) {
	limits, _ := ParseLimits([]byte(ten))
	t.Run("saved", func(t *testing.T) {
		f := newSettingsFixture("", "")
		testkit.Must(t, f.Change(t.Context(), replaceWith(limits)))
		if len(f.mirror.entries) != 1 || string(f.mirror.entries[0].Details) != `{"changes":[{"path":"/api/max","from":600,"to":10},{"path":"/api/windowMs","from":60000,"to":1000}]}` {
			t.Errorf("audit entries %+v, want one with the change", f.mirror.entries)
		}
		if *f.Current() != limits || string(f.store.value) != normalize(ten) || string(f.mirror.value) != normalize(ten) {
			t.Errorf("limits %+v, stored %s, mirrored %s; want %s in all", *f.Current(), f.store.value, f.mirror.value, normalize(ten))
		}
	})
	t.Run("invalid limits: not saved", func(t *testing.T) {
		f := newSettingsFixture("", "")
		if err := f.Change(t.Context(), replaceWith(Limits{})); !fault.Is(err, fault.Validation) || f.store.value != nil {
			t.Errorf("error %v, stored %q; want %s and nothing stored", err, f.store.value, fault.Validation)
		}
	})
	t.Run("store unreachable: not saved", func(t *testing.T) {
		f := newSettingsFixture("", "")
		f.store.err = fault.Unavailable("The key-value store", nil)
		if err := f.Change(t.Context(), replaceWith(limits)); !fault.Is(err, fault.ServiceUnavailable) || f.mirror.value != nil {
			t.Errorf("error %v, mirrored %q; want %s and nothing mirrored", err, f.mirror.value, fault.ServiceUnavailable)
		}
	})
	t.Run("database unreachable: not saved", func(t *testing.T) {
		f := newSettingsFixture(`{"tiers":{}}`, ten)
		f.mirror.err = errors.New("unreachable")
		if err := f.Change(t.Context(), replaceWith(limits)); !errors.Is(err, f.mirror.err) || f.store.writes != 0 {
			t.Errorf("error %v and %d writes, want the database's error and none", err, f.store.writes)
		}
	})
	t.Run("commit fails: saved, with an error", func(t *testing.T) {
		f := newSettingsFixture(`{"tiers":{}}`, "")
		f.mirror.commitErr = errors.New("unreachable")
		err := f.Change(t.Context(), replaceWith(limits))
		if err == nil || !strings.Contains(err.Error(), "the audit log has no entry, and there is no copy yet") {
			t.Errorf("error %v, want one that reports the missing copy", err)
		}
		if *f.Current() != limits || f.store.value == nil {
			t.Error("the limits were not saved")
		}
	})
}

func TestConcurrentChangesAreMerged(t *testing.T) {
	f := newSettingsFixture("", "")
	others := DefaultLimits()
	others.Tiers.Webhook.Max = 4711
	f.store.concurrent = others.JSON()
	err := f.Change(t.Context(), func(l Limits) (Limits, error) {
		l.Tiers.API.Max = 42
		return l, nil
	})
	want := others
	want.Tiers.API.Max = 42
	if err != nil || *f.Current() != want || string(f.store.value) != string(want.JSON()) {
		t.Errorf("error %v, limits %+v, stored %s; want %+v", err, *f.Current(), f.store.value, want)
	}
}
