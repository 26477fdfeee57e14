package cache

import (
	"container/list"
	"sync"
)

// LRU keeps the most recently used values of each team within a size, such as bytes
// of memory. A team that has its share evicts its own values. It is safe for concurrent
// use.
type LRU[V any] struct {
	total, share int64 // maximum sizes: of all values, and of those of one team

	mu     sync.Mutex
	used   int64                    // size of all values
	values map[string]*list.Element // of *cached[V], by key
	teams  map[string]*teamValues   // without those that have no value
}

type cached[V any] struct {
	team, key string
	size      int64
	value     V
}

type teamValues struct {
	used   int64
	recent list.List // of *cached[V], most recently used first
}

// NewLRU returns an empty cache of the given size, of which a team may have the given
// percentage.
func NewLRU[V any](total int64, percent int) *LRU[V] {
	return &LRU[V]{total: total, share: max(1, total*int64(percent)/100), values: map[string]*list.Element{}, teams: map[string]*teamValues{}}
}

// Get returns the value of a key.
func (c *LRU[V]) Get(key string) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.values[key]
	if !ok {
		return value, false
	}
	v := e.Value.(*cached[V])
	c.teams[v.team].recent.MoveToFront(e)
	return v.value, true
}

// Add stores a value of a team. Values that are larger than its share are not stored.
func (c *LRU[V]) Add(team, key string, size int64, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(key)
	if size > c.share {
		return
	}
	for own := c.teams[team]; own != nil && own.used+size > c.share; {
		c.evict(own)
	}
	for c.used+size > c.total {
		c.evict(c.largest())
	}
	own := c.teams[team] // nil, too, if all its values were evicted
	if own == nil {
		own = &teamValues{}
		c.teams[team] = own
	}
	c.values[key] = own.recent.PushFront(&cached[V]{team, key, size, value})
	own.used += size
	c.used += size
}

// Remove removes the value of a key.
func (c *LRU[V]) Remove(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(key)
}

// purge removes all values.
func (c *LRU[V]) purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used = 0
	clear(c.values)
	clear(c.teams)
}

func (c *LRU[V]) remove(key string) {
	e, ok := c.values[key]
	if !ok {
		return
	}
	v := e.Value.(*cached[V])
	own := c.teams[v.team]
	own.recent.Remove(e)
	own.used -= v.size
	c.used -= v.size
	delete(c.values, key)
	if own.recent.Len() == 0 {
		delete(c.teams, v.team)
	}
}

func (c *LRU[V]) evict(own *teamValues) { c.remove(own.recent.Back().Value.(*cached[V]).key) }

// largest returns the team with the largest values. There is at least one.
func (c *LRU[V]) largest() (found *teamValues) {
	for _, t := range c.teams {
		if found == nil || t.used > found.used {
			found = t
		}
	}
	return found
}
