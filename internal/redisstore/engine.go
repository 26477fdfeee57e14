package redisstore

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// engine is the embedded engine. Its content can be dumped and loaded as a whole.
type engine struct {
	*miniredis.Miniredis
	server *server.Server // works also after Close, when the content is saved
	// inScript is the context of commands that a script calls. Commands with this
	// context do not lock the engine, because a script already holds the lock.
	inScript any

	memory *memory

	ticking sync.Mutex
	ticked  time.Time // until when TTLs have been counted down; whole milliseconds
}

// startEngine starts an empty engine on a free port of the loopback interface. Its
// content needs at most maxBytes of memory.
func startEngine(password string, maxBytes int64) (*engine, error) {
	e := &engine{Miniredis: miniredis.NewMiniRedis(), ticked: time.Now()}
	e.memory = newMemory(e, maxBytes)
	e.RequireAuth(password)
	if err := e.StartAddr("127.0.0.1:0"); err != nil {
		return nil, err
	}
	e.server = e.Server()
	const capture = "TELAPI.CONTEXT" // a command that a script calls, so that its context becomes known
	err := e.server.Register(capture, func(c *server.Peer, _ string, _ []string) {
		if e.inScript == nil {
			e.inScript = c.Ctx
		}
		c.WriteOK()
	})
	client := newConsole(e.server, nil)
	client.do("AUTH", password)
	client.do("EVAL", "return redis.call('"+capture+"')", "0")
	if err = errors.Join(err, client.err); err != nil {
		e.Close()
		return nil, err
	}
	e.server.SetPreHook(e.memory.hook)
	return e, nil
}

// tick makes keys expire, since the engine does not count time itself, and measures
// the memory that it needs.
func (e *engine) tick() {
	e.ticking.Lock()
	defer e.ticking.Unlock()
	now := time.Now()
	elapsed := now.Sub(e.ticked).Truncate(time.Millisecond)
	e.FastForward(elapsed)
	e.ticked = now.Add(elapsed - now.Sub(e.ticked)) // the wall clock may have been set
	e.memory.measure()
}

// dump returns the commands that create the engine's content, with the expiry of
// keys as absolute times, and the number of keys. Nothing else writes meanwhile, except
// that a consumer may receive entries of a stream. The texts are not copied: a copy every
// two seconds would be most of the process's memory.
func (e *engine) dump() (commands [][]string, keys int, err error) {
	e.ticking.Lock()
	defer e.ticking.Unlock()
	e.memory.writing.Lock()
	defer e.memory.writing.Unlock()
	d := dump{engine: e, console: newConsole(e.server, e.inScript)}
	for _, key := range e.Keys() {
		if d.key(key) {
			keys++
			if ttl := e.TTL(key); ttl > 0 {
				d.add("PEXPIREAT", key, strconv.FormatInt(e.ticked.UnixMilli()+ttl.Milliseconds(), 10))
			}
		}
		if d.err != nil {
			return nil, 0, d.err
		}
	}
	return d.commands, keys, nil
}

// load runs commands of a dump on the empty engine. If one fails, the engine is
// empty again.
func (e *engine) load(commands [][]string) error {
	e.Lock()
	defer e.Unlock()
	c := newConsole(e.server, e.inScript)
	for _, args := range commands {
		if c.do(args...); c.err != nil {
			newConsole(e.server, e.inScript).do("FLUSHALL")
			return fmt.Errorf("%s: %w", args[0], c.err)
		}
	}
	return nil
}

// console runs commands on the engine and keeps the first error.
type console struct {
	server *server.Server
	peer   *server.Peer
	reader *bufio.Reader
	err    error
}

func newConsole(s *server.Server, context any) *console {
	output := &bytes.Buffer{}
	c := &console{server: s, peer: server.NewPeer(bufio.NewWriter(output)), reader: bufio.NewReader(output)}
	c.peer.Ctx = context
	return c
}

// do runs a command and returns its reply: nil, an int, a string, a server.Simple
// or a list of replies.
func (c *console) do(args ...string) any {
	if c.err != nil || len(args) == 0 {
		return nil
	}
	c.server.Dispatch(c.peer, args)
	c.peer.Flush()
	reply, err := server.ParseReply(c.reader)
	c.err = err
	return reply
}

func (c *console) list(args ...string) []any {
	list, _ := c.do(args...).([]any)
	return list
}

// dump collects the commands that create keys.
type dump struct {
	engine *engine
	*console
	commands [][]string
}

func (d *dump) add(args ...string) { d.commands = append(d.commands, args) }

// key adds the commands that create a key. It reports false for types that nothing
// in this program uses, and which the engine cannot export.
func (d *dump) key(key string) bool {
	e := d.engine
	switch e.Type(key) {
	case "string":
		value, _ := e.Get(key)
		d.add("SET", key, value)
	case "hash":
		command := []string{"HSET", key}
		names, _ := e.HKeys(key)
		for _, name := range names {
			command = append(command, name, e.HGet(key, name))
		}
		d.add(command...)
	case "set":
		members, _ := e.Members(key)
		d.add(append([]string{"SADD", key}, members...)...)
	case "zset":
		command := []string{"ZADD", key}
		members, _ := e.ZMembers(key)
		for _, member := range members {
			score, _ := e.ZScore(key, member)
			command = append(command, strconv.FormatFloat(score, 'g', -1, 64), member)
		}
		d.add(command...)
	case "stream":
		d.stream(key)
	default:
		return false
	}
	return true
}

// stream adds the commands that create a stream: its entries, the ID of the last
// entry even if that has been deleted, and its consumer groups.
func (d *dump) stream(key string) {
	last := ""
	entries, _ := d.engine.Stream(key)
	for _, entry := range entries {
		last = entry.ID
		d.add(append([]string{"XADD", key, last}, entry.Values...)...)
	}
	d.engine.Lock()
	defer d.engine.Unlock()
	generated := field(d.list("XINFO", "STREAM", key), "last-generated-id")
	groups := d.list("XINFO", "GROUPS", key)
	if generated == "" && last == "" && len(groups) == 0 {
		generated = "0-1" // the smallest ID, of a stream that has never had an entry
	}
	if generated != last && generated != "" {
		d.add("XADD", key, generated, "deleted", "")
		d.add("XDEL", key, generated)
	}
	slices.SortFunc(groups, func(a, b any) int { return strings.Compare(field(a, "name"), field(b, "name")) })
	for _, group := range groups {
		name := field(group, "name")
		d.add("XGROUP", "CREATE", key, name, field(group, "last-delivered-id"), "MKSTREAM")
		for _, consumer := range d.list("XINFO", "CONSUMERS", key, name) {
			d.add("XGROUP", "CREATECONSUMER", key, name, field(consumer, "name"))
		}
		now := time.Now()
		for _, item := range d.list("XPENDING", key, name, "-", "+", strconv.Itoa(math.MaxInt32)) {
			pending := item.([]any)
			delivered := now.Add(-time.Duration(pending[2].(int)) * time.Millisecond)
			d.add("XCLAIM", key, name, pending[1].(string), "0", pending[0].(string),
				"TIME", strconv.FormatInt(delivered.UnixMilli(), 10), "RETRYCOUNT", strconv.Itoa(pending[3].(int)), "FORCE", "JUSTID")
		}
	}
}

// field returns a text of a reply that lists names and values.
func field(reply any, name string) string {
	list, _ := reply.([]any)
	for i := 0; i+1 < len(list); i += 2 {
		if list[i] == name {
			text, _ := list[i+1].(string)
			return text
		}
	}
	return ""
}
