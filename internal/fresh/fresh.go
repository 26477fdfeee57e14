// Package fresh owns a cache whose values are dropped by announcements. It
// holds values only while announcements can be heard: a value that changed
// unheard is never served from it.
package fresh

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"
)

// Cache keeps the most recently used values for a bounded time.
//
// All methods may be called from any goroutine. What they promise together:
//
//   - A Get that starts after Drop, Suspend or Resume returned never sees a
//     value whose load started before it, neither from the cache nor by joining
//     that load. Callers that were already waiting still get it.
//   - One load runs per key at a time, apart from one that such a call left
//     behind. It runs detached from its callers, so that one that gives up fails
//     nobody else, and has to bound its own time.
//   - Errors are handed to everybody who waited and are not kept.
//
// One mutex guards everything. It is held for a map access and two pointer
// moves, some tens of nanoseconds, so that a single hot key, which shards could
// not spread, costs no more than many cold ones.
type Cache[V any] struct {
	ttl time.Duration

	mu    sync.Mutex
	open  bool
	age   int // counts what was forgotten: a load of another age is not kept
	held  *simplelru.LRU[string, entry[V]]
	loads *singleflight.Group
}

type entry[V any] struct {
	value   V
	expires time.Time
}

// New returns a suspended cache of at most size values, each of which is used
// for at most ttl. Both must be positive.
func New[V any](size int, ttl time.Duration) *Cache[V] {
	held, err := simplelru.NewLRU[string, entry[V]](size, nil)
	if err != nil {
		panic(fmt.Sprintf("fresh: cache of size %d: %v", size, err))
	}
	return &Cache[V]{ttl: ttl, held: held, loads: new(singleflight.Group)}
}

// Get returns the value of key, from the cache or by load. The context that load
// receives carries the values of the first caller's, not its end.
func (c *Cache[V]) Get(ctx context.Context, key string, load func(context.Context) (V, error)) (V, error) {
	now := time.Now()
	c.mu.Lock()
	if e, ok := c.held.Get(key); ok && now.Before(e.expires) {
		c.mu.Unlock()
		return e.value, nil
	}
	loaded := c.launch(ctx, key, now.Add(c.ttl), load)
	c.mu.Unlock()

	var none V
	select {
	case r := <-loaded:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(V), nil
	case <-ctx.Done():
		return none, ctx.Err()
	}
}

// launch joins the load of key or starts one. Its value expires by the time at
// which the load started: it may be that old. The caller holds mu.
func (c *Cache[V]) launch(ctx context.Context, key string, expires time.Time, load func(context.Context) (V, error)) <-chan singleflight.Result {
	age := c.age
	return c.loads.DoChan(key, func() (any, error) {
		value, err := guarded(context.WithoutCancel(ctx), load)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil && c.open && c.age == age {
			c.held.Add(key, entry[V]{value, expires})
		}
		return value, err
	})
}

// guarded turns a panic of load into an error: it runs on a goroutine of its
// own, where no request's recovery would catch it.
func guarded[V any](ctx context.Context, load func(context.Context) (V, error)) (value V, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("load panicked: %v\n%s", r, debug.Stack())
		}
	}()
	return load(ctx)
}

// Drop forgets one key.
func (c *Cache[V]) Drop(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age++
	c.held.Remove(key)
	c.loads.Forget(key)
}

// Suspend forgets everything and keeps nothing until Resume. Get goes on to
// load.
func (c *Cache[V]) Suspend() { c.setOpen(false) }

// Resume lets the cache keep what is loaded from now on; not the values of loads
// that already run, which may have changed before anybody listened.
func (c *Cache[V]) Resume() { c.setOpen(true) }

func (c *Cache[V]) setOpen(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = open
	c.age++
	c.held.Purge()
	c.loads = new(singleflight.Group)
}
