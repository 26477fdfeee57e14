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

	"telapi/internal/fault"
)

// fakeStore is a limits store in memory that can fail. It passes the tests of
// package conformance.
type fakeStore struct {
	mu        sync.Mutex
	value     []byte
	err       error
	writes    int
	meanwhile []byte // saved by another administrator before the next save
}

// to returns a change that replaces the limits.
func to(limits Limits) func(Limits) (Limits, error) {
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
	if s.meanwhile != nil {
		s.value, s.meanwhile = s.meanwhile, nil
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
	hangs bool // until its context ends
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
	ten    = `{"tiers":{"api":{"max":10,"windowMs":1000}}}`
	twenty = `{"tiers":{"api":{"max":20,"windowMs":1000}}}`
	bad    = `{"tiers":{"api":{"max":-1,"windowMs":1000}}}`
)

// A client over the defaults but within the limits must not be refused by an
// instance that has just started.
func TestDefaultLimitsAreNotEnforcedBeforeFirstLoad(t *testing.T) {
	f := newSettingsFixture(ten, "")
	f.store.err = errors.New("away")
	if limits, err := f.Limits(t.Context()); !errors.Is(err, f.store.err) {
		t.Errorf("with the store away %+v are in force, %v", limits, err)
	}
	f.store.err, f.mirror.err = nil, errors.New("away")
	if limits, err := f.Limits(t.Context()); err != nil || limits.Tiers.API.Max != 10 {
		t.Errorf("after the store was reached %+v are in force, %v", limits, err)
	}
	f.store.err = errors.New("away again")
	if limits, err := f.Limits(t.Context()); err != nil || limits.Tiers.API.Max != 10 {
		t.Errorf("of the limits that were read %+v are in force, %v", limits, err)
	}
}

func TestReload(t *testing.T) {
	away := errors.New("away")
	for name, tc := range map[string]struct {
		store, mirror         string
		storeErr, mirrorErr   error
		want                  int64
		wantErr               bool
		wantStore, wantMirror string // of "", "ten", "twenty", "same"
	}{
		"nothing anywhere: defaults":                        {want: 600},
		"in the store: in force and mirrored":               {store: ten, want: 10, wantMirror: ten},
		"store and mirror differ: the store's counts":       {store: ten, mirror: twenty, want: 10, wantMirror: ten},
		"lost by the store: restored":                       {mirror: ten, want: 10, wantStore: ten},
		"bad in the store: the mirror's last good holds":    {store: bad, mirror: ten, want: 10, wantStore: bad, wantMirror: ten},
		"bad in the store, nothing mirrored: defaults":      {store: bad, want: 600, wantStore: bad},
		"bad in both: defaults":                             {store: bad, mirror: bad, want: 600, wantStore: bad, wantMirror: bad},
		"lost by the store, bad in the mirror: defaults":    {mirror: bad, want: 600},
		"store away: nothing changes":                       {store: ten, mirror: twenty, storeErr: away, want: 600, wantErr: true, wantMirror: twenty},
		"mirror away: the store's value is in force anyway": {store: ten, mirrorErr: away, want: 10, wantErr: true},
		"lost by the store, mirror away: nothing changes":   {mirrorErr: away, want: 600, wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newSettingsFixture(tc.store, tc.mirror)
			f.store.err, f.mirror.err = tc.storeErr, tc.mirrorErr
			if err := f.Reload(t.Context()); (err != nil) != tc.wantErr {
				t.Errorf("reload: %v", err)
			}
			if got := f.Current().Tiers.API.Max; got != tc.want {
				t.Errorf("%d requests are allowed, want %d", got, tc.want)
			}
			for what, pair := range map[string][2]string{
				"store": {string(f.store.value), tc.wantStore}, "mirror": {string(f.mirror.value), tc.wantMirror},
			} {
				if want := pair[1]; want != "" && normal(pair[0]) != normal(want) {
					t.Errorf("the %s holds %s, want %s", what, pair[0], want)
				}
			}
		})
	}
}

// normal returns the stored form of a valid value.
func normal(value string) string {
	if limits, err := ParseLimits([]byte(value)); err == nil {
		return string(limits.JSON())
	}
	return value
}

func TestInvalidLimitsAreLoggedOnce(t *testing.T) {
	f := newSettingsFixture(ten, "")
	reload := func(value string) {
		f.store.put(value)
		if err := f.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	reload(ten)
	for range 3 {
		reload(bad)
	}
	if f.Current().Tiers.API.Max != 10 {
		t.Error("a bad value changed the limits")
	}
	if n := strings.Count(f.logged.String(), "invalid rate limits"); n != 1 || counted(f.rejected) != 1 {
		t.Errorf("reported %d times, counted %v:\n%s", n, counted(f.rejected), f.logged)
	}
	if !strings.Contains(f.logged.String(), "/tiers/api/max") {
		t.Errorf("the log does not say what is wrong:\n%s", f.logged)
	}
	reload(`nonsense`)
	reload(twenty)
	reload(bad)
	if n := strings.Count(f.logged.String(), "invalid rate limits"); n != 3 || counted(f.rejected) != 3 {
		t.Errorf("three bad values were reported %d times, counted %v", n, counted(f.rejected))
	}
	if f.Current().Tiers.API.Max != 20 {
		t.Error("the good value in between was not taken")
	}
}

func TestUnchangedLimitsKeepPointerAndMirror(t *testing.T) {
	f := newSettingsFixture(ten, "")
	_ = f.Reload(t.Context())
	before := f.Current()
	f.mirror.err = errors.New("must not be queried")
	for range 3 {
		if err := f.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if f.Current() != before || f.mirror.writes != 1 {
		t.Errorf("reading the same value again voids leases, or is mirrored again (%d writes)", f.mirror.writes)
	}
}

func TestRunReloadsLimits(t *testing.T) {
	for name, signal := range map[string]func(*Settings){
		"on an announcement":             func(s *Settings) { s.Message("limits") },
		"on subscribing again":           func(s *Settings) { s.Down(nil); s.Up() },
		"within five seconds without it": func(s *Settings) { s.Message("something else"); time.Sleep(5 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newSettingsFixture(ten, "")
				ctx, cancel := context.WithCancel(t.Context())
				go f.Run(ctx)
				synctest.Wait()
				if f.Current().Tiers.API.Max != 10 {
					t.Fatal("not read at start")
				}
				f.store.put(twenty)
				signal(f.Settings)
				synctest.Wait()
				if f.Current().Tiers.API.Max != 20 {
					t.Error("the change was not picked up")
				}
				cancel()
			})
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
				t.Errorf("a second after the change %d requests are allowed, want %d", f.Current().Tiers.API.Max, want.Tiers.API.Max)
			}
		}
	})
}

func TestFailingReloadIsLoggedOnce(t *testing.T) {
	for want, err := range []error{fault.Unavailable("The key-value store", nil), errors.New("odd")} {
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
		if err := f.Change(t.Context(), to(limits)); err != nil {
			t.Fatal(err)
		}
		if *f.Current() != limits || string(f.store.value) != normal(ten) || string(f.mirror.value) != normal(ten) {
			t.Errorf("in force %+v, stored %s, mirrored %s", *f.Current(), f.store.value, f.mirror.value)
		}
	})
	t.Run("out of bounds: nothing changed", func(t *testing.T) {
		f := newSettingsFixture("", "")
		if err := f.Change(t.Context(), to(Limits{})); !fault.Is(err, fault.Validation) || f.store.value != nil {
			t.Errorf("%v, stored %s", err, f.store.value)
		}
	})
	t.Run("store away: nothing changed", func(t *testing.T) {
		f := newSettingsFixture("", "")
		f.store.err = fault.Unavailable("The key-value store", nil)
		if err := f.Change(t.Context(), to(limits)); !fault.Is(err, fault.ServiceUnavailable) || f.mirror.value != nil {
			t.Errorf("%v, mirrored %s", err, f.mirror.value)
		}
	})
	t.Run("database away: in force, and said so", func(t *testing.T) {
		f := newSettingsFixture(`{"tiers":{}}`, "")
		f.mirror.err = errors.New("away")
		err := f.Change(t.Context(), to(limits))
		if err == nil || !strings.Contains(err.Error(), "saved and in force, but not yet copied to the database") {
			t.Errorf("got %v", err)
		}
		if *f.Current() != limits || f.store.value == nil {
			t.Error("not in force")
		}
	})
}

func TestConcurrentChangesAreMerged(t *testing.T) {
	f := newSettingsFixture("", "")
	theirs := DefaultLimits()
	theirs.Tiers.Webhook.Max = 4711
	f.store.meanwhile = theirs.JSON()
	err := f.Change(t.Context(), func(l Limits) (Limits, error) {
		l.Tiers.API.Max = 42
		return l, nil
	})
	want := theirs
	want.Tiers.API.Max = 42
	if err != nil || *f.Current() != want || string(f.store.value) != string(want.JSON()) {
		t.Errorf("%v; in force %+v, stored %s", err, *f.Current(), f.store.value)
	}
}
