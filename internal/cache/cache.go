// Package cache provides a cache whose values are dropped by announcements. It
// holds values only while announcements can be heard: a value that changed
// unheard is never served from it.
package cache

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/singleflight"
)

// Cache keeps the most recently used values for a bounded time.
//
// All methods may be called from any goroutine. What they promise together:
//
//   - A Get that starts after Message, Down or Up returned never sees a value
//     that these forgot, nor one whose load started before them, neither from
//     the cache nor by joining that load. Callers that were already waiting
//     still get it.
//   - One load runs per key at a time, apart from one that such a call left
//     behind. It runs detached from its callers, so that one that gives up fails
//     nobody else, and has to bound its own time.
//   - Errors are handed to everybody who waited and are not kept.
//
// One mutex guards everything. It is held for a map access and two pointer
// moves, some tens of nanoseconds, so that a single hot key, which shards could
// not spread, costs no more than many cold ones.
type Cache[V any] struct {
	topics string // the prefix of those that are about its keys
	ttl    time.Duration

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

// Announcer tells every running instance that something changed.
type Announcer interface {
	Announce(ctx context.Context, topic string) error
}

// What caches of this service hold, and for how long at the most.
const (
	Size = 10_000
	TTL  = 30 * time.Second
)

// New returns a cache of at most size values, each of which is used for at most
// ttl. Both must be positive. It holds nothing until Up is called. A topic of the
// prefix and a key announces that the key's value has changed.
func New[V any](topics string, size int, ttl time.Duration) *Cache[V] {
	held, err := simplelru.NewLRU[string, entry[V]](size, nil)
	if err != nil {
		panic(fmt.Sprintf("cache: cache of size %d: %v", size, err))
	}
	return &Cache[V]{topics: topics, ttl: ttl, held: held, loads: new(singleflight.Group)}
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

// Message forgets the key that an announcement names.
func (c *Cache[V]) Message(topic string) {
	key, ours := strings.CutPrefix(topic, c.topics)
	if !ours {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age++
	c.held.Remove(key)
	c.loads.Forget(key)
}

// Down forgets everything and keeps nothing until Up: a change might pass
// unheard now. Get goes on to load.
func (c *Cache[V]) Down(error) { c.setOpen(false) }

// Up lets the cache keep what is loaded from now on; not the values of loads
// that already run, which may have changed before anybody listened.
func (c *Cache[V]) Up() { c.setOpen(true) }

func (c *Cache[V]) setOpen(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = open
	c.age++
	c.held.Purge()
	c.loads = new(singleflight.Group)
}
