package redisstore

import (
	"bufio"
	"bytes"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2/server"
)

// errorFull is the error with which a full engine rejects a command, as Redis does.
const errorFull = "OOM command not allowed when used memory > 'maxmemory'. Set EMBEDDED_KV_MAX_BYTES to a higher value."

const (
	// keyOverhead and itemOverhead are what the engine needs for a key besides its
	// content, and at most for an argument of a command that it stores.
	keyOverhead, itemOverhead = 512, 128

	// largeKey is the size from which a key to which data was only added is measured
	// once it has grown by a quarter, since measuring it takes time.
	largeKey = 16 << 10

	// measureTime is the time that a tick may spend on measuring.
	measureTime = engineTick / 20
	// sweepInterval is how often the sizes of expired keys are dropped.
	sweepInterval = time.Second
)

// effect is what a command does to the memory that the engine needs.
type effect int

const (
	none    effect = iota
	adds           // rejected by a full engine
	removes        // or needs little memory
	unknown        // adds or removes; any argument may be a key
)

// effects has the commands that the program uses, and those that need no memory
// although they are not read-only. All others are unknown. Whether a command is rejected
// is as in Redis (its flag denyoom).
var effects = map[string]effect{
	"COPY": adds, "HSET": adds, "INCRBY": adds, "SADD": adds, "SET": adds, "XADD": adds, "XGROUP": adds, "ZADD": adds,

	"DEL": removes, "HDEL": removes, "PERSIST": removes, "PEXPIRE": removes, "PEXPIREAT": removes, "RENAME": removes, "SREM": removes,
	"UNLINK": removes, "XACK": removes, "XAUTOCLAIM": removes, "XCLAIM": removes, "XDEL": removes, "XREADGROUP": removes,
	"XTRIM": removes, "ZREM": removes, "ZREMRANGEBYSCORE": removes,

	"AUTH": none, "CLIENT": none, "CLUSTER": none, "COMMAND": none, "DISCARD": none, "ECHO": none, "HELLO": none, "INFO": none,
	"MEMORY": none, "MULTI": none, "OBJECT": none, "PING": none, "PSUBSCRIBE": none, "PUBLISH": none, "PUBSUB": none,
	"PUNSUBSCRIBE": none, "QUIT": none, "SCRIPT": none, "SELECT": none, "SUBSCRIBE": none, "TIME": none, "UNSUBSCRIBE": none,
	"UNWATCH": none, "WAIT": none, "WATCH": none, "XINFO": none,
}

// memory limits the memory of an engine's content. Its count is an upper bound: what
// commands add is counted at once, and what they remove when the key is measured, which
// a tick does.
type memory struct {
	engine *engine
	limit  int64

	mu      sync.Mutex // protects the fields below
	keys    map[string]*keySize
	changed map[string]struct{} // keys to measure
	used    int                 // sum of keys
	swept   time.Time

	active   atomic.Pointer[server.Peer] // the connection whose script or writing command is running
	writing  sync.Mutex                  // held while one is running; protects the fields below
	full     bool                        // when the script started
	wrote    bool                        // the script has changed something
	rejected bool                        // a command of the script was rejected
}

// keySize is the size of a key: when it was measured, and what was added since.
type keySize struct {
	measured, added int
	removed         bool // something was removed since
}

func newMemory(e *engine, limit int64) *memory {
	return &memory{engine: e, limit: limit, keys: map[string]*keySize{}, changed: map[string]struct{}{}}
}

// hook runs before each command, and instead of it if it returns true. It counts what
// the command adds. A full engine rejects a command that adds something; in a script, it
// does so only if the script has changed nothing before, so that a script runs as a
// whole or not at all.
func (m *memory) hook(c *server.Peer, command string, args ...string) bool {
	if c.Ctx == nil { // the first command of a connection; commands of scripts have a context and no name
		c.ClientName = "connection"
	}
	isScript := command == "EVAL" || command == "EVALSHA"
	effect := m.effect(command)
	switch {
	case effect == none && !isScript || c == m.active.Load():
		return false
	case command == "XREADGROUP": // may wait for a writer, so it must not hold writing
		m.count(effect, command, args)
		return false
	case c.ClientName == "": // called by a script
		if effect != removes && m.full && !m.wrote {
			m.rejected = true
			c.WriteError(errorFull)
			return true
		}
		m.wrote = true
		m.count(effect, command, args) // no tick measures while a script runs
		return false
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	full := m.isFull()
	switch {
	case isScript:
		m.runScript(c, full, append([]string{command}, args...))
	case effect != removes && full:
		c.WriteError(errorFull)
	default:
		m.dispatch(c, append([]string{command}, args...))
		m.count(effect, command, args) // after the command: a tick may measure before it
	}
	return true
}

func (m *memory) effect(command string) effect {
	if effect, known := effects[command]; known {
		return effect
	}
	if m.engine.server.IsReadOnlyCommand(command) || !m.engine.server.IsRegisteredCommand(command) {
		return none
	}
	return unknown
}

// dispatch runs a command of a connection. The hook lets it pass.
func (m *memory) dispatch(c *server.Peer, args []string) {
	m.active.Store(c)
	defer m.active.Store(nil)
	m.engine.server.Dispatch(c, args)
}

// runScript runs a script. If one of its commands was rejected, the reply is that
// command's error.
func (m *memory) runScript(c *server.Peer, full bool, args []string) {
	m.full, m.wrote, m.rejected = full, false, false
	if !full {
		m.dispatch(c, args)
		return
	}
	defer func() { m.full = false }()
	var reply bytes.Buffer
	writer := bufio.NewWriter(&reply)
	buffered := server.NewPeer(writer)
	buffered.Ctx, buffered.Resp3 = c.Ctx, c.Resp3
	m.dispatch(buffered, args)
	_ = writer.Flush()
	if m.rejected {
		c.WriteError(errorFull)
		return
	}
	c.WriteRaw(reply.String())
}

func (m *memory) isFull() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(m.used) > m.limit
}

// count notes the effect of a command on its keys.
func (m *memory) count(effect effect, command string, args []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	size, keys := 0, args // an argument that is not a key has no size when it is measured
	switch {
	case len(args) == 0 || effect == unknown: // any argument may be a key
	case command == "COPY":
		if source := m.keys[args[0]]; source != nil {
			size = source.measured + source.added
		}
	case command == "XGROUP":
		keys = args[1:min(2, len(args))]
	case command == "XREADGROUP":
		keys = args[slices.Index(args, "STREAMS")+1:]
	case command != "DEL" && command != "UNLINK" && command != "RENAME":
		keys = args[:1]
	}
	if effect != removes {
		for _, arg := range args {
			size += len(arg) + itemOverhead
		}
	}
	for _, name := range keys {
		key := m.keys[name]
		if key == nil {
			key = &keySize{added: keyOverhead}
			m.keys[name] = key
			m.used += keyOverhead
		}
		key.added += size
		key.removed = key.removed || effect != adds
		m.used += size
		m.changed[name] = struct{}{}
	}
}

// measure measures changed keys for at most measureTime. Later calls measure the rest.
func (m *memory) measure() {
	deadline := time.Now().Add(measureTime)
	console := newConsole(m.engine.server, m.engine.inScript)
	for _, name := range m.due() {
		if time.Now().After(deadline) {
			return
		}
		m.measureKey(console, name)
	}
	if time.Since(m.swept) >= sweepInterval {
		m.sweep(console)
	}
}

// due returns the keys to measure.
func (m *memory) due() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.changed {
		if key := m.keys[name]; key.removed || key.measured < largeKey || key.added > key.measured/4 {
			names = append(names, name)
		}
	}
	return names
}

// measureKey replaces the size of a key by its measured size. No command runs meanwhile.
func (m *memory) measureKey(console *console, name string) {
	m.engine.Lock()
	defer m.engine.Unlock()
	size, exists := console.do("MEMORY", "USAGE", name).(int)
	m.mu.Lock()
	defer m.mu.Unlock()
	if key := m.keys[name]; key != nil {
		m.used -= key.measured + key.added
	}
	delete(m.changed, name)
	delete(m.keys, name)
	if exists {
		size += 2*len(name) + keyOverhead
		m.keys[name] = &keySize{measured: size}
		m.used += size
	}
}

// sweep finds keys that have expired, or that a command created without naming them.
func (m *memory) sweep(console *console) {
	m.engine.Lock()
	defer m.engine.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.swept = time.Now()
	if count, _ := console.do("DBSIZE").(int); count == len(m.keys) {
		return
	}
	exists := map[string]bool{}
	for _, key := range console.list("KEYS", "*") {
		name, _ := key.(string)
		exists[name] = true
		if m.keys[name] == nil {
			m.keys[name] = &keySize{}
			m.changed[name] = struct{}{}
		}
	}
	for name, key := range m.keys {
		if !exists[name] {
			m.used -= key.measured + key.added
			delete(m.keys, name)
			delete(m.changed, name)
		}
	}
}
