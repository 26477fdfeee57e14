package fastlane

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// share is the part of the cache that one object may take.
const share = 8

// entry is an object at hand, in memory or as an open file. It never changes.
type entry struct {
	path         string
	head         []byte // of the answer, up to the Date
	body         []byte
	file         *source     // instead of body
	length, size int64       // of the body, and of everything
	used         atomic.Bool // since the hand last passed
	at           *list.Element
}

// cache holds objects up to a number of bytes. What goes first follows SIEVE: a
// hand walks from the oldest to the newest, spares what was used since it last
// came by, and takes the rest. So a hit writes nothing but one flag.
//
// A path is in one of three conditions: its object is at hand; one goroutine
// loads it; or neither. Changing a path ends the first two, and while it lasts
// nobody may begin to load: so what enters the cache was read entirely between
// two changes.
type cache struct {
	max      int64
	maxFiles uint64
	load     func(path string, limit int64) (Blob, bool)

	hits, loads atomic.Uint64

	mu      sync.RWMutex
	entries map[string]*entry
	loading map[string]uint64 // by the load that may enter the cache
	turn    uint64
	changes map[string]int // under way
	order   list.List      // of *entry, newest first
	hand    *list.Element
	bytes   int64
	files   uint64
}

func newCache(maximum int64, load func(string, int64) (Blob, bool)) *cache {
	return &cache{max: maximum, maxFiles: spareFiles(), load: load,
		entries: map[string]*entry{}, loading: map[string]uint64{}, changes: map[string]int{}}
}

// get returns the object of a path, loaded if need be and into memory if asked
// for, or nil if the server should answer.
func (c *cache) get(path []byte, inMemory bool) *entry {
	c.mu.RLock()
	e := c.entries[string(path)]
	c.mu.RUnlock()
	if e == nil || inMemory && e.file != nil {
		if e = c.fetch(string(path), inMemory); e == nil {
			return nil
		}
	}
	if !e.used.Load() {
		e.used.Store(true)
	}
	c.hits.Add(1)
	return e
}

// fetch loads an object. Who comes while another does so is left to the server
// rather than made to wait.
func (c *cache) fetch(path string, inMemory bool) *entry {
	c.mu.Lock()
	if c.max <= 0 || c.loading[path] != 0 || c.changes[path] > 0 {
		c.mu.Unlock()
		return nil
	}
	c.turn++
	mine := c.turn
	c.loading[path] = mine
	inMemory = inMemory || c.files >= c.maxFiles
	c.mu.Unlock()

	e := c.read(path, inMemory)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loading[path] != mine { // changed meanwhile
		e.close()
		return nil
	}
	delete(c.loading, path)
	if e != nil {
		c.loads.Add(1)
		c.insert(e)
	}
	return e
}

// read gets an object from its owner, or nil if there is none of a fitting size.
func (c *cache) read(path string, inMemory bool) *entry {
	limit := c.max / share
	object, ok := c.load(path, limit)
	if !ok {
		return nil
	}
	e, err := newEntry(path, object, inMemory)
	if err != nil || e.size > limit {
		e.close()
		return nil
	}
	return e
}

func (c *cache) insert(e *entry) {
	if old := c.entries[e.path]; old != nil {
		c.remove(old)
	}
	for c.bytes+e.size > c.max {
		c.evict()
	}
	c.entries[e.path] = e
	e.at = c.order.PushFront(e)
	c.bytes += e.size
	if e.file != nil {
		c.files++
	}
}

func (c *cache) evict() {
	for {
		if c.hand == nil {
			c.hand = c.order.Back()
		}
		e := c.hand.Value.(*entry)
		if !e.used.Swap(false) {
			c.remove(e)
			return
		}
		c.hand = c.hand.Prev()
	}
}

func (c *cache) remove(e *entry) {
	if c.hand == e.at {
		c.hand = e.at.Prev()
	}
	c.order.Remove(e.at)
	delete(c.entries, e.path)
	c.bytes -= e.size
	if e.file != nil {
		c.files--
	}
	e.close()
}

// close begins a change.
func (c *cache) close(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes[path]++
	delete(c.loading, path)
	if e := c.entries[path]; e != nil {
		c.remove(e)
	}
}

// open ends it.
func (c *cache) open(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes[path]--; c.changes[path] == 0 {
		delete(c.changes, path)
	}
}

func (c *cache) stats() Stats {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return Stats{Hits: c.hits.Load(), Loads: c.loads.Load(), Objects: int64(len(c.entries)), Bytes: c.bytes}
}
