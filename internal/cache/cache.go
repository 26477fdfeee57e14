// Package cache provides caches that no team can fill alone. Cache is invalidated by
// announcements. It stores values only while announcements are received, so that it
// never returns a value whose change was missed.
package cache

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"telapi/internal/background"
)

// Size and TTL of the caches of this service. A team may have a quarter of the size.
const (
	Size = 10_000
	TTL  = 30 * time.Second

	teamShare = 25 // percent
)

// Announcer notifies every running instance that a topic has changed.
type Announcer interface {
	Announce(ctx context.Context, topic string) error
}

// Cache keeps the most recently used values for at most TTL. It is safe for
// concurrent use and guarantees:
//
//   - A Get that starts after Message, Down or Up has returned never returns a
//     value that this call invalidated, or one whose load started before it.
//   - At most one load per key runs at a time, not counting invalidated loads. A
//     load continues if its callers stop waiting.
//   - Errors are returned to all waiting callers and are not stored.
type Cache[V any] struct {
	topicPrefix string
	cost        func(V) (teamID string, size int64)
	loaders     *background.Group // runs the loads

	mu     sync.Mutex
	open   bool // after Up and before Down: values may be stored
	values *LRU[entry[V]]
	loads  map[string]*load[V] // loads in progress that are not invalidated
}

type entry[V any] struct {
	value   V
	expires time.Time
}

// load is a load in progress.
type load[V any] struct {
	done  chan struct{} // closed when value and err are set
	value V
	err   error
}

// New returns an empty cache. The topic of a key is topicPrefix followed by the key. cost
// returns the team of a value and its size; all values together have at most the given size.
// The cache stores nothing before Up is called.
func New[V any](topicPrefix string, size int64, cost func(V) (teamID string, size int64)) *Cache[V] {
	return &Cache[V]{
		topicPrefix: topicPrefix, cost: cost, loaders: background.NewGroup(),
		values: NewLRU[entry[V]](size, teamShare), loads: map[string]*load[V]{},
	}
}

// Get returns the cached value of key, or loads it with read. The context of read
// has the values of the first caller's context, but no deadline: read must have its
// own timeout.
func (c *Cache[V]) Get(ctx context.Context, key string, read func(context.Context) (V, error)) (V, error) {
	now := time.Now()
	c.mu.Lock()
	if e, ok := c.values.Get(key); ok && now.Before(e.expires) {
		c.mu.Unlock()
		return e.value, nil
	}
	l := c.loads[key]
	if l == nil {
		l = c.start(ctx, key, now.Add(TTL), read)
	}
	c.mu.Unlock()
	select {
	case <-l.done:
		return l.value, l.err
	case <-ctx.Done():
		var zero V
		return zero, ctx.Err()
	}
}

// start starts a load. The caller holds mu. The value expires TTL after the start of
// the load, when it may have been read.
func (c *Cache[V]) start(ctx context.Context, key string, expires time.Time, read func(context.Context) (V, error)) *load[V] {
	l := &load[V]{done: make(chan struct{})}
	c.loads[key] = l
	err := c.loaders.Go(ctx, func(ctx context.Context) {
		defer close(l.done)
		var teamID string
		var size int64
		if l.value, l.err = call(ctx, read); l.err == nil {
			teamID, size = c.cost(l.value) // outside the lock: it may encode the value
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.loads[key] != l {
			return // invalidated
		}
		delete(c.loads, key)
		if l.err == nil && c.open {
			c.values.Add(teamID, key, size, entry[V]{l.value, expires})
		}
	})
	if err != nil {
		l.err = err
		close(l.done)
	}
	return l
}

// call returns a panic of read as an error: the recovery of an HTTP handler does not apply
// to the goroutine of a load.
func call[V any](ctx context.Context, read func(context.Context) (V, error)) (_ V, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("load panicked: %v\n%s", r, debug.Stack())
		}
	}()
	return read(ctx)
}

// Message invalidates the key of an announced topic.
func (c *Cache[V]) Message(topic string) {
	key, ok := strings.CutPrefix(topic, c.topicPrefix)
	if !ok {
		return // a topic of another cache
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.values.Remove(key)
	delete(c.loads, key)
}

// Down empties the cache and stops storing values until Up, because changes may
// be missed. Get continues to load.
func (c *Cache[V]) Down(error) { c.setOpen(false) }

// Up lets the cache store values again. It does not store the values of loads that
// are running: they may have changed while announcements were missed.
func (c *Cache[V]) Up() { c.setOpen(true) }

func (c *Cache[V]) setOpen(open bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = open
	c.values.purge()
	clear(c.loads)
}

// Close cancels loads and waits for them.
func (c *Cache[V]) Close() { c.loaders.Close() }
