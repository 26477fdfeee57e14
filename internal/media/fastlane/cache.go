package fastlane

import (
	"bytes"
	"container/list"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
)

const (
	maxShare      = 8        // a blob may use at most 1/maxShare of the cache
	entryOverhead = 512      // estimated memory of an entry without its content
	minSendfile   = 16 << 10 // the size from which sendfile is faster than a copy in memory
)

// entry is a cached blob, in memory or as an open file. It is immutable.
type entry struct {
	path    string
	head    []byte // of the response, up to the Date
	body    []byte
	file    *source       // nil if body is set
	length  int64         // of the body
	size    int64         // of the entry, including overhead
	used    atomic.Bool   // since the hand has passed it
	element *list.Element // in cache.order
}

// cache holds blobs up to a number of bytes and evicts them with the SIEVE
// algorithm: a hand moves from the oldest to the newest entry, skips entries that
// were used since it last passed, and evicts the others. So a hit only sets a flag.
//
// A path is cached, or being loaded by one goroutine, or neither. A change of the
// path removes its entry, invalidates its load, and prevents new loads until the
// change has ended. So a cached blob was read completely between two changes.
type cache struct {
	max      int64
	maxFiles uint64
	load     func(path string, limit int64) (Blob, bool)

	hits atomic.Uint64

	mu      sync.RWMutex
	entries map[string]*entry
	loading map[string]uint64 // ID of the valid load
	loadID  uint64
	changes map[string]int // number of active changes
	order   list.List      // of *entry, newest first
	hand    *list.Element
	bytes   int64
	files   uint64
}

func newCache(maximum int64, load func(string, int64) (Blob, bool)) *cache {
	return &cache{max: maximum, maxFiles: maxCachedFiles(), load: load,
		entries: map[string]*entry{}, loading: map[string]uint64{}, changes: map[string]int{}}
}

// get returns the blob of a path and loads it if necessary. It returns nil if the
// server should serve the request.
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

// fetch loads a blob. While another goroutine loads it, fetch returns nil instead
// of waiting.
func (c *cache) fetch(path string, inMemory bool) *entry {
	c.mu.Lock()
	if c.max <= 0 || c.loading[path] != 0 || c.changes[path] > 0 {
		c.mu.Unlock()
		return nil
	}
	c.loadID++
	id := c.loadID
	c.loading[path] = id
	inMemory = inMemory || c.files >= c.maxFiles
	c.mu.Unlock()

	e := c.read(path, inMemory)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loading[path] != id { // the path has changed
		e.close()
		return nil
	}
	delete(c.loading, path)
	if e != nil {
		c.insert(e)
	}
	return e
}

// read returns a new entry, or nil if there is no blob of a suitable size.
func (c *cache) read(path string, inMemory bool) *entry {
	limit := c.max / maxShare
	blob, ok := c.load(path, limit)
	if !ok {
		return nil
	}
	e, err := newEntry(path, blob, inMemory)
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
	e.element = c.order.PushFront(e)
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
	if c.hand == e.element {
		c.hand = e.element.Prev()
	}
	c.order.Remove(e.element)
	delete(c.entries, e.path)
	c.bytes -= e.size
	if e.file != nil {
		c.files--
	}
	e.close()
}

// beginChange removes a path and prevents loads until endChange.
func (c *cache) beginChange(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes[path]++
	delete(c.loading, path)
	if e := c.entries[path]; e != nil {
		c.remove(e)
	}
}

func (c *cache) endChange(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes[path]--; c.changes[path] == 0 {
		delete(c.changes, path)
	}
}

// newEntry reads a blob into memory, or keeps its file for sendfile.
func newEntry(path string, b Blob, inMemory bool) (*entry, error) {
	e := &entry{path: path, length: b.Size}
	if err := e.open(b.File, inMemory || b.Size < minSendfile); err != nil {
		return nil, err
	}
	b.Header.Set("Content-Length", strconv.FormatInt(b.Size, 10))
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = b.Header.Write(&head)
	head.WriteString("Date: ")
	e.head = head.Bytes()
	e.size = int64(len(path)+len(e.head)+entryOverhead) + b.Size
	return e, nil
}

func (e *entry) open(f *os.File, inMemory bool) (err error) {
	if !inMemory {
		if e.file, err = newSource(f); err == nil {
			return nil
		}
	}
	defer func() { _ = f.Close() }()
	e.body = make([]byte, e.length)
	_, err = f.ReadAt(e.body, 0)
	return err
}

// close closes the file, if any, when no connection sends it anymore.
func (e *entry) close() {
	if e != nil && e.file != nil {
		_ = e.file.Close()
	}
}
