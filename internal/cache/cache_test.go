package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/background"
	"telapi/test/testkit"
)

const ttl = TTL

func newOpenCache() *Cache[int] {
	c := newCache()
	c.Up()
	return c
}

// newCache returns a cache of two values.
func newCache() *Cache[int] { return New("t:", 8, one) }

func one(int) (teamID string, size int64) { return "team", 1 }

// counted returns a load function that returns 1, 2, 3 and so on, which shows
// where a value came from.
func counted() func(context.Context) (int, error) {
	var n atomic.Int64
	return func(context.Context) (int, error) { return int(n.Add(1)), nil }
}

func get(t *testing.T, c *Cache[int], key string, load func(context.Context) (int, error)) int {
	t.Helper()
	v, err := c.Get(t.Context(), key, load)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return v
}

func TestGetAfterInvalidation(t *testing.T) {
	for _, tc := range []struct {
		name string
		call func(*Cache[int])
		want int // result of the second Get; the first returned 1
	}{
		{"unchanged: hit", func(*Cache[int]) {}, 1},
		{"before the TTL: hit", func(*Cache[int]) { time.Sleep(ttl - 1) }, 1},
		{"after the TTL: reload", func(*Cache[int]) { time.Sleep(ttl) }, 2},
		{"announced: reload", func(c *Cache[int]) { c.Message("t:k") }, 2},
		{"topic of another cache announced: hit", func(c *Cache[int]) { c.Message("k"); c.Message("u:k") }, 1},
		{"another key announced: hit", func(c *Cache[int]) { c.Message("t:other") }, 1},
		{"subscription lost: reload", func(c *Cache[int]) { c.Down(nil) }, 2},
		{"subscription lost and restored: reload", func(c *Cache[int]) { c.Down(nil); c.Up() }, 2},
	} {
		testkit.RunBubble(t, tc.name, func(t *testing.T) {
			c, load := newOpenCache(), counted()
			get(t, c, "k", load)
			tc.call(c)
			testkit.Equal(t, "got the value of load", get(t, c, "k", load), tc.want)
		})
	}
}

func TestNothingIsStoredBeforeUp(t *testing.T) {
	c, load := newCache(), counted()
	get(t, c, "k", load)
	testkit.Equal(t, "before Up: got the value of load", get(t, c, "k", load), 2)
	c.Up()
	get(t, c, "k", load)
	testkit.Equal(t, "after Up: value of load", get(t, c, "k", load), 3)
}

// The attack: a key is revoked while it is being read. The outdated result must
// not be stored or returned to later callers.
func TestValueLoadedBeforeAnAnnouncementIsNotUsedAfterIt(t *testing.T) {
	for name, announce := range map[string]func(*Cache[int]){
		"Message": func(c *Cache[int]) { c.Message("t:k") },
		"Down":    func(c *Cache[int]) { c.Down(nil) },
		"Up":      func(c *Cache[int]) { c.Up() },
	} {
		testkit.RunBubble(t, name, func(t *testing.T) {
			c := newOpenCache()
			release := make(chan struct{})
			oldValue := make(chan int)
			go func() {
				v, _ := c.Get(t.Context(), "k", func(context.Context) (int, error) { <-release; return 1, nil })
				oldValue <- v
			}()
			synctest.Wait()
			announce(c)

			fresh := func(context.Context) (int, error) { return 2, nil }
			testkit.Equal(t, "a caller after the announcement got value of the old load", get(t, c, "k", fresh), 2)
			close(release)
			testkit.Equal(t, "the caller before the announcement", <-oldValue, 1)
			synctest.Wait()
			testkit.Equal(t, "after the old load", get(t, c, "k", fresh), 2)
		})
	}
}

func TestConcurrentGetsShareOneLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, load := newOpenCache(), counted()
		slow := func(ctx context.Context) (int, error) { time.Sleep(time.Second); return load(ctx) }
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if v, err := c.Get(t.Context(), "k", slow); v != 1 || err != nil {
					t.Errorf("got value %d (error %v), want that of the single load, 1", v, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestCanceledCallerDoesNotCancelTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOpenCache()
		slow := func(ctx context.Context) (int, error) {
			select {
			case <-time.After(time.Minute):
				return 1, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		canceled, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			testkit.WantError(t, "the canceled caller got", testkit.ErrorOf(c.Get(canceled, "k", slow)), context.DeadlineExceeded)
		})
		synctest.Wait()
		wg.Go(func() {
			if v, err := c.Get(t.Context(), "k", slow); v != 1 || err != nil {
				t.Errorf("the waiting caller got %d (error %v), want 1", v, err)
			}
		})
		wg.Wait()
	})
}

func TestErrorsAndPanicsAreReturnedAndNotStored(t *testing.T) {
	c, load := New("t:", 8, func(v int) (teamID string, size int64) {
		if v == 0 {
			t.Error("the cost of a failed load was asked for")
		}
		return one(v)
	}), counted()
	c.Up()
	loadErr := errors.New("load failed")
	testkit.WantError(t, "failed load", testkit.ErrorOf(c.Get(t.Context(), "k", func(context.Context) (int, error) { return 0, loadErr })), loadErr)
	_, err := c.Get(t.Context(), "k", func(context.Context) (int, error) { panic("the reason") })
	if err == nil || !strings.Contains(err.Error(), "the reason") {
		t.Errorf("panic: error %v, want one with its value", err)
	}
	testkit.Equal(t, "after failures: got load", get(t, c, "k", load), 1)
}

// Writers increment a version and then announce it. Get must never return a
// version older than the one announced before the call.
func TestGetNeverReturnsOlderThanAnnounced(t *testing.T) {
	c := newOpenCache()
	var version, announced atomic.Int64
	var readers, writer sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := "k" // sometimes another key, to cause evictions
				if i%8 == 0 {
					key = fmt.Sprint(i % 64)
				}
				oldest := announced.Load()
				v, err := c.Get(context.Background(), key, func(context.Context) (int, error) { return int(version.Load()), nil })
				if err != nil || (key == "k" && int64(v) < oldest) {
					t.Errorf("read version %d (error %v) after %d was announced", v, err, oldest)
					return
				}
			}
		})
	}
	writer.Go(func() {
		for i := range int64(5000) {
			version.Store(i)
			switch i % 10 {
			case 8:
				c.Down(nil)
			case 9:
				c.Up()
			default:
				c.Message("t:k")
			}
			announced.Store(i)
		}
	})
	writer.Wait()
	close(stop)
	readers.Wait()
}

func TestCloseWaitsForLoads(t *testing.T) {
	c, started := newOpenCache(), make(chan struct{})
	var ended atomic.Bool
	failed := make(chan error)
	go func() {
		_, err := c.Get(context.Background(), "k", func(ctx context.Context) (int, error) {
			close(started)
			<-ctx.Done()
			ended.Store(true)
			return 0, ctx.Err()
		})
		failed <- err
	}()
	<-started
	c.Close()
	if !ended.Load() {
		t.Error("Close did not wait for the load")
	}
	testkit.WantError(t, "load", <-failed, context.Canceled)
	testkit.WantError(t, "after Close", testkit.ErrorOf(c.Get(context.Background(), "k", counted())), background.ErrClosed)
}

func TestLRUKeepsValuesOfOtherTeams(t *testing.T) {
	c := NewLRU[int](10, 40)
	expect := func(keys ...string) {
		t.Helper()
		if len(c.values) != len(keys) {
			t.Errorf("%d values, want %v", len(c.values), keys)
		}
		for _, key := range keys {
			if _, ok := c.values[key]; !ok {
				t.Errorf("no value of %s", key)
			}
		}
		var used int64
		for _, own := range c.teams {
			used += own.used
		}
		if used != c.used || used > c.total {
			t.Errorf("%d used by teams, %d in total", used, c.used)
		}
	}
	for i := range 4 {
		c.Add("a", fmt.Sprint("a", i), 1, i)
	}
	c.Add("b", "b0", 2, 0)
	if _, ok := c.Get("a0"); !ok {
		t.Error("a0 is missing")
	}
	c.Add("a", "a4", 2, 4) // instead of a1 and a2
	expect("a0", "a3", "a4", "b0")
	c.Add("a", "a5", 5, 5) // more than the share
	c.Add("c", "c0", 4, 0)
	expect("a0", "a3", "a4", "b0", "c0")
	c.Add("d", "d0", 1, 0) // instead of a value of a or c, which have most
	if _, b := c.values["b0"]; !b || len(c.values) != 5 {
		t.Errorf("%d values, b0 %v; want 5 with b0", len(c.values), b)
	}
	c.Add("b", "b0", 1, 1)
	if v, ok := c.Get("b0"); !ok || v != 1 {
		t.Errorf("b0 is %d, %v; want the new value", v, ok)
	}
	for key := range c.values {
		c.Remove(key)
	}
	expect()
	if len(c.teams) != 0 {
		t.Errorf("teams %v, want none", c.teams)
	}
}
