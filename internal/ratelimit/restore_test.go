package ratelimit

import (
	"context"
	"errors"
	"strings"
	"testing"

	"telapi/test/testkit"
)

func TestLostLimitsAreRestored(t *testing.T) {
	f := newSettingsFixture(ten, "")
	for _, value := range []string{ten, invalid, ""} {
		if f.store.value = []byte(value); value == "" {
			f.store.value = nil
		}
		testkit.Must(t, f.Reload(t.Context()))
	}
	if f.Current().Tiers.API.Max != 10 || normalize(string(f.store.value)) != normalize(ten) {
		t.Errorf("limit of %d API requests, the store contains %s, want %s", f.Current().Tiers.API.Max, f.store.value, ten)
	}
	if testkit.MetricValue(t, f.rejected) != 1 || strings.Count(f.logged.String(), "had lost the rate limits") != 1 {
		t.Errorf("%v invalid values; log\n%s\nwant one, and one loss", testkit.MetricValue(t, f.rejected), f.logged)
	}
}

func TestNothingIsRestoredWithoutLoss(t *testing.T) {
	for name, f := range map[string]*settingsFixture{"never saved": newSettingsFixture("", ""), "invalid": newSettingsFixture(invalid, ten)} {
		testkit.Must(t, f.Reload(t.Context()))
		if f.store.writes != 0 || strings.Contains(f.logged.String(), "restored") {
			t.Errorf("%s: %d writes, log\n%s", name, f.store.writes, f.logged)
		}
	}
}

func TestEqualMirrorIsNotWritten(t *testing.T) {
	f := newSettingsFixture(ten, ten)
	if err := f.Reload(t.Context()); err != nil || f.mirror.writes != 0 {
		t.Errorf("%d writes, error %v, want none", f.mirror.writes, err)
	}
	limits := *f.Current()
	limits.Tiers.API.Max = 30
	testkit.Must(t, f.Change(t.Context(), replaceWith(limits)))
	if err := f.Reload(t.Context()); err != nil || f.mirror.writes != 1 {
		t.Errorf("%d writes after a change, error %v, want 1", f.mirror.writes, err)
	}
}

func TestLoadedLimitsAreNotReadAgain(t *testing.T) {
	f := newSettingsFixture(ten, "")
	for range 2 {
		if limits, err := f.Limits(t.Context()); err != nil || limits.Tiers.API.Max != 10 {
			t.Errorf("limits %+v, error %v, want 10 API requests", limits, err)
		}
		f.store.put(twenty)
	}
}

func TestOtherTopicsRequestNoReload(t *testing.T) {
	f := newSettingsFixture(ten, "")
	f.Message("key:1")
	if len(f.wake) != 0 {
		t.Error("another topic requested a reload")
	}
	f.Message(Topic)
	if len(f.wake) != 1 {
		t.Error("the topic of the limits requested no reload")
	}
}

// unsavable is a store that cannot be written.
type unsavable struct {
	*fakeStore
	err error
}

func (s unsavable) SaveLimits(context.Context, []byte, []byte) (bool, error) { return false, s.err }

func TestUnsavedLimitsDoNotApply(t *testing.T) {
	f := newSettingsFixture(ten, ten)
	full := errors.New("out of memory")
	f.Settings.store = unsavable{f.store, full}
	limits := DefaultLimits()
	limits.Tiers.API.Max = 30
	if err := f.Change(t.Context(), replaceWith(limits)); !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
	if f.Current().Tiers.API.Max == 30 {
		t.Error("the limits apply although they were not saved")
	}
}
