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
	path   string
	head   []byte // of the response, up to the Date
	body   []byte
	file   *source // nil if body is set
	length int64   // of the body
	size   int64   // of the entry, including overhead
}

// cache holds the most recently used blobs up to a number of bytes.
//
// A path is cached, or being loaded by one goroutine, or neither. A change of the
// path removes its entry, invalidates its load, and prevents new loads until the
// change has ended. So a cached blob was read completely between two changes.
type cache struct {
	max      int64
	maxFiles uint64
	load     func(path string, limit int64) (Blob, bool)

	hits atomic.Uint64

	mu      sync.Mutex
	entries map[string]*list.Element // of order
	loading map[string]uint64        // ID of the valid load
	loadID  uint64
	changes map[string]int // number of active changes
	order   list.List      // of *entry, most recently used first
	bytes   int64
	files   uint64
}

func newCache(maximum int64, load func(string, int64) (Blob, bool)) *cache {
	return &cache{max: maximum, maxFiles: maxCachedFiles(), load: load,
		entries: map[string]*list.Element{}, loading: map[string]uint64{}, changes: map[string]int{}}
}

// get returns the blob of a path and loads it if necessary, with inMemory not as an open
// file. It returns nil if the server should serve the request.
func (c *cache) get(path []byte, inMemory bool) *entry {
	e := c.find(path)
	if e == nil || inMemory && e.file != nil {
		e = c.fetch(string(path), inMemory)
	}
	if e != nil {
		c.hits.Add(1)
	}
	return e
}

func (c *cache) find(path []byte) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.entries[string(path)]
	if element == nil {
		return nil
	}
	c.order.MoveToFront(element)
	return element.Value.(*entry)
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

// read returns a new entry with the blob in memory, or with its file for sendfile. It
// returns nil if there is no blob of a suitable size.
func (c *cache) read(path string, inMemory bool) *entry {
	limit := c.max / maxShare
	blob, ok := c.load(path, limit)
	if !ok {
		return nil
	}
	e := &entry{path: path, length: blob.Size}
	if e.open(blob.File, inMemory || blob.Size < minSendfile) != nil {
		return nil
	}
	blob.Header.Set("Content-Length", strconv.FormatInt(blob.Size, 10))
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = blob.Header.Write(&head)
	head.WriteString("Date: ")
	e.head = head.Bytes()
	e.size = int64(len(path)+len(e.head)+entryOverhead) + blob.Size
	if e.size > limit {
		e.close()
		return nil
	}
	return e
}

func (c *cache) insert(e *entry) {
	c.remove(c.entries[e.path])
	for c.bytes+e.size > c.max {
		c.remove(c.order.Back())
	}
	c.entries[e.path] = c.order.PushFront(e)
	c.bytes += e.size
	if e.file != nil {
		c.files++
	}
}

func (c *cache) remove(element *list.Element) {
	if element == nil {
		return
	}
	e := c.order.Remove(element).(*entry)
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
	c.remove(c.entries[path])
}

func (c *cache) endChange(path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes[path]--; c.changes[path] == 0 {
		delete(c.changes, path)
	}
}

// open keeps the file or, if it cannot, reads it into memory and closes it.
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
