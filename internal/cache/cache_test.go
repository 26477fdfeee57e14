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
)

const ttl = 30 * time.Second

func resumed() *Cache[int] {
	c := New[int]("t:", 2, ttl)
	c.Up()
	return c
}

// counted returns a load that answers 1, 2, 3 … and so shows which load a
// caller's value came from.
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

func TestWhatACallerSeesAfterEachCall(t *testing.T) {
	for _, tc := range []struct {
		name string
		call func(*Cache[int])
		want int // of the second load-or-hit; the first answered 1
	}{
		{"nothing: a hit", func(*Cache[int]) {}, 1},
		{"just inside the TTL: a hit", func(*Cache[int]) { time.Sleep(ttl - 1) }, 1},
		{"past the TTL: loaded again", func(*Cache[int]) { time.Sleep(ttl) }, 2},
		{"dropped: loaded again", func(c *Cache[int]) { c.Message("t:k") }, 2},
		{"the key of another cache dropped: a hit", func(c *Cache[int]) { c.Message("k"); c.Message("u:k") }, 1},
		{"another key dropped: a hit", func(c *Cache[int]) { c.Message("t:other") }, 1},
		{"suspended: loaded again", func(c *Cache[int]) { c.Down(nil) }, 2},
		{"suspended and resumed: loaded again", func(c *Cache[int]) { c.Down(nil); c.Up() }, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, load := resumed(), counted()
				get(t, c, "k", load)
				tc.call(c)
				if got := get(t, c, "k", load); got != tc.want {
					t.Errorf("got the value of load %d, want of load %d", got, tc.want)
				}
			})
		})
	}
}

func TestNothingIsKeptBeforeUp(t *testing.T) {
	c, load := New[int]("t:", 2, ttl), counted()
	get(t, c, "k", load)
	if got := get(t, c, "k", load); got != 2 {
		t.Errorf("a new cache kept load %d", got)
	}
	c.Up()
	get(t, c, "k", load)
	if got := get(t, c, "k", load); got != 3 {
		t.Errorf("after Up got load %d, want the kept 3", got)
	}
}

func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	c, load := resumed(), counted()
	get(t, c, "a", load) // 1
	get(t, c, "b", load) // 2
	get(t, c, "a", load)
	get(t, c, "c", load) // 3, in place of b
	if got := get(t, c, "a", load); got != 1 {
		t.Errorf("the recently used value went: got load %d", got)
	}
	if got := get(t, c, "b", load); got != 4 {
		t.Errorf("the least recently used value stayed: got load %d", got)
	}
}

// The attack: a key is looked up, revoked and announced while the look-up is
// still under way. Its result must not be stored or given to later callers.
func TestValueLoadedBeforeAnAnnouncementIsNotUsedAfterIt(t *testing.T) {
	for name, announce := range map[string]func(*Cache[int]){
		"Message": func(c *Cache[int]) { c.Message("t:k") },
		"Down":    func(c *Cache[int]) { c.Down(nil) },
		"Up":      func(c *Cache[int]) { c.Up() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := resumed()
				release := make(chan struct{})
				old := make(chan int)
				go func() {
					v, _ := c.Get(t.Context(), "k", func(context.Context) (int, error) { <-release; return 1, nil })
					old <- v
				}()
				synctest.Wait()
				announce(c)

				fresh := func(context.Context) (int, error) { return 2, nil }
				if got := get(t, c, "k", fresh); got != 2 {
					t.Errorf("a caller after the announcement joined the old load: %d", got)
				}
				close(release)
				if got := <-old; got != 1 {
					t.Errorf("the early caller got %d", got)
				}
				synctest.Wait()
				if got := get(t, c, "k", fresh); got != 2 {
					t.Errorf("the old load was stored after the announcement: %d", got)
				}
			})
		})
	}
}

func TestOneLoadServesAllWhoAskAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, load := resumed(), counted()
		slow := func(ctx context.Context) (int, error) { time.Sleep(time.Second); return load(ctx) }
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if v, err := c.Get(t.Context(), "k", slow); v != 1 || err != nil {
					t.Errorf("got %d, %v", v, err)
				}
			})
		}
		wg.Wait()
	})
}

func TestCallerWhoGivesUpFailsNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := resumed()
		slow := func(ctx context.Context) (int, error) {
			select {
			case <-time.After(time.Minute):
				return 1, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}
		hasty, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.Get(hasty, "k", slow); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the hasty caller got %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if v, err := c.Get(t.Context(), "k", slow); v != 1 || err != nil {
				t.Errorf("the patient caller got %d, %v", v, err)
			}
		})
		wg.Wait()
	})
}

func TestErrorsAndPanicsAreHandedOverAndNotKept(t *testing.T) {
	c, load := resumed(), counted()
	boom := errors.New("boom")
	if _, err := c.Get(t.Context(), "k", func(context.Context) (int, error) { return 0, boom }); !errors.Is(err, boom) {
		t.Errorf("got %v", err)
	}
	_, err := c.Get(t.Context(), "k", func(context.Context) (int, error) { panic("ouch") })
	if err == nil || !strings.Contains(err.Error(), "ouch") {
		t.Errorf("got %v", err)
	}
	if got := get(t, c, "k", load); got != 1 {
		t.Errorf("got load %d", got)
	}
}

// Writers bump a version and then announce it; a reader must never see less
// than what was announced before it asked.
func TestNoReaderEverSeesLessThanWasAnnounced(t *testing.T) {
	c := resumed()
	var source, announced atomic.Int64
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
				key := "k" // now and then others, so that eviction runs too
				if i%8 == 0 {
					key = fmt.Sprint(i % 64)
				}
				floor := announced.Load()
				v, err := c.Get(context.Background(), key, func(context.Context) (int, error) { return int(source.Load()), nil })
				if err != nil || (key == "k" && int64(v) < floor) {
					t.Errorf("read %d (%v) after %d was announced", v, err, floor)
					return
				}
			}
		})
	}
	writer.Go(func() {
		for i := range int64(5000) {
			source.Store(i)
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

func TestHitAllocatesNothing(t *testing.T) {
	c, load := resumed(), counted()
	ctx := context.Background()
	get(t, c, "k", load)
	if n := testing.AllocsPerRun(100, func() { _, _ = c.Get(ctx, "k", load) }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
}

func BenchmarkHit(b *testing.B) {
	for _, keys := range []int{1, 1000} {
		b.Run(fmt.Sprintf("%d keys", keys), func(b *testing.B) {
			c := New[int]("t:", keys, time.Hour)
			c.Up()
			names := make([]string, keys)
			for i := range names {
				names[i] = fmt.Sprintf("tk_%d", i)
			}
			load := counted()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				ctx := context.Background()
				for i := 0; pb.Next(); i++ {
					_, _ = c.Get(ctx, names[i%keys], load)
				}
			})
		})
	}
}
