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
)

// Cache keeps the most recently used values for a bounded time.
//
// All methods may be called from any goroutine. What they promise together:
//
//   - A Get that starts after Drop, DropAll, Suspend or Resume returned never
//     sees a value whose load started before it, neither from the cache nor by
//     joining that load. Callers that were already waiting still get it.
//   - One load runs per key at a time, apart from one that such a call left
//     behind. It runs detached from its callers: one that gives up fails
//     nobody else, and only when all have given up is the load cancelled.
//   - Errors are handed to everybody who waited and are not kept.
//
// One mutex guards everything. It is held for a map access and two pointer
// moves, some tens of nanoseconds, so that a single hot key, which shards could
// not spread, costs no more than many cold ones.
type Cache[K comparable, V any] struct {
	ttl time.Duration

	mu     sync.Mutex
	open   bool
	held   *simplelru.LRU[K, entry[V]]
	flying map[K]*flight[V]
}

type entry[V any] struct {
	value   V
	expires time.Time
}

// flight is one running load. Only the flight that Cache.flying names for a key
// may store its value: whoever takes it out of there has made it stale.
type flight[V any] struct {
	waiting int // guarded by Cache.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed when value and err are set
	value   V
	err     error
}

// New returns a suspended cache of at most size values, each of which is used
// for at most ttl. Both must be positive.
func New[K comparable, V any](size int, ttl time.Duration) *Cache[K, V] {
	held, err := simplelru.NewLRU[K, entry[V]](size, nil)
	if err != nil {
		panic(fmt.Sprintf("fresh: cache of size %d: %v", size, err))
	}
	return &Cache[K, V]{ttl: ttl, held: held, flying: make(map[K]*flight[V])}
}

// Get returns the value of key, from the cache or by load. The context that load
// receives carries the values of the first caller's, not its end.
func (c *Cache[K, V]) Get(ctx context.Context, key K, load func(context.Context) (V, error)) (V, error) {
	now := time.Now()
	c.mu.Lock()
	if e, ok := c.held.Get(key); ok && now.Before(e.expires) {
		c.mu.Unlock()
		return e.value, nil
	}
	f, ok := c.flying[key]
	if !ok {
		f = c.launch(ctx, key, now.Add(c.ttl), load)
	}
	f.waiting++
	c.mu.Unlock()

	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		c.leave(key, f)
		var none V
		return none, ctx.Err()
	}
}

// launch starts a load. Its value expires by the time at which the load started:
// it may be that old. The caller holds mu.
func (c *Cache[K, V]) launch(ctx context.Context, key K, expires time.Time, load func(context.Context) (V, error)) *flight[V] {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight[V]{cancel: cancel, done: make(chan struct{})}
	c.flying[key] = f
	go func() {
		defer cancel()
		f.value, f.err = guarded(ctx, load)
		c.mu.Lock()
		if c.flying[key] == f {
			delete(c.flying, key)
			if f.err == nil && c.open {
				c.held.Add(key, entry[V]{f.value, expires})
			}
		}
		c.mu.Unlock()
		close(f.done)
	}()
	return f
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

// leave notes that a caller gave up. A load that nobody waits for any more is
// cancelled and forgotten, so that the next caller does not inherit it.
func (c *Cache[K, V]) leave(key K, f *flight[V]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.waiting--
	if f.waiting > 0 {
		return
	}
	f.cancel()
	if c.flying[key] == f {
		delete(c.flying, key)
	}
}

// Drop forgets one key.
func (c *Cache[K, V]) Drop(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held.Remove(key)
	delete(c.flying, key)
}

// DropAll forgets everything.
func (c *Cache[K, V]) DropAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
}

// Suspend forgets everything and keeps nothing until Resume. Get goes on to
// load.
func (c *Cache[K, V]) Suspend() { c.setOpen(false) }

// Resume lets the cache keep what is loaded from now on; not the values of loads
// that already run, which may have changed before anybody listened.
func (c *Cache[K, V]) Resume() { c.setOpen(true) }

func (c *Cache[K, V]) setOpen(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = open
	c.forget()
}

func (c *Cache[K, V]) forget() {
	c.held.Purge()
	clear(c.flying)
}
