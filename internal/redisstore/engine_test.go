package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"

	"telapi/test/testkit"
)

func newTestEngine(t *testing.T) (*engine, *console) {
	t.Helper()
	e, err := startEngine("secret", defaultMaxBytes)
	testkit.Must(t, err)
	t.Cleanup(e.Close)
	c := newConsole(e.server, nil)
	c.do("AUTH", "secret")
	return e, c
}

func mustDump(t *testing.T, e *engine) [][]string {
	t.Helper()
	commands, _, err := e.dump()
	testkit.Must(t, err)
	return commands
}

// randomCommand returns a command on one of a few keys of each type. Some of them
// fail or change nothing.
func randomCommand(r *rand.Rand) []string {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	key := func(kind string) string { return kind + strconv.Itoa(r.IntN(3)) }
	value := func() string {
		return pick("", "a", "a b\r\n", "\x00\xff", strings.Repeat("x", r.IntN(5000)), strconv.Itoa(r.IntN(100)))
	}
	number := func() string { return pick("0", "1", "-3.25", "1e-9", "12345678901234.5", "+inf", "0.1") }
	id := func() string { return fmt.Sprintf("%d-%d", 1+r.IntN(50), r.IntN(3)) }
	commands := []func() []string{
		func() []string { return []string{"SET", key("string"), value()} },
		func() []string { return []string{"INCRBY", "counter", strconv.Itoa(r.IntN(100))} },
		func() []string { return []string{"HSET", key("hash"), value(), value(), value(), value()} },
		func() []string { return []string{"HDEL", key("hash"), value()} },
		func() []string { return []string{"SADD", key("set"), value(), value()} },
		func() []string { return []string{"SREM", key("set"), value()} },
		func() []string { return []string{"ZADD", key("zset"), number(), value(), number(), value()} },
		func() []string { return []string{"ZREM", key("zset"), value()} },
		func() []string { return []string{"XADD", key("stream"), pick("*", id()), value(), value()} },
		func() []string { return []string{"XDEL", key("stream"), id()} },
		func() []string { return []string{"XTRIM", key("stream"), "MAXLEN", strconv.Itoa(r.IntN(4))} },
		func() []string {
			return []string{"XGROUP", "CREATE", key("stream"), pick("g1", "g2"), pick("0", "$"), "MKSTREAM"}
		},
		func() []string { return []string{"XGROUP", "CREATECONSUMER", key("stream"), pick("g1", "g2"), "idle"} },
		func() []string { return []string{"XGROUP", "DESTROY", key("stream"), "g2"} },
		func() []string {
			return []string{"XREADGROUP", "GROUP", pick("g1", "g2"), pick("c1", "c2"), "COUNT", "2", "STREAMS", key("stream"), ">"}
		},
		func() []string { return []string{"XACK", key("stream"), "g1", id()} },
		func() []string { return []string{"XAUTOCLAIM", key("stream"), "g1", "c2", "0", "0"} },
		func() []string {
			return []string{"PEXPIRE", key(pick("string", "hash", "set", "zset", "stream")), strconv.Itoa(1_000_000 + r.IntN(1_000_000))}
		},
		func() []string { return []string{"PERSIST", key("string")} },
		func() []string { return []string{"DEL", key(pick("string", "hash", "set", "zset", "stream"))} },
		func() []string { return []string{"RENAME", key("stream"), key("stream")} },
	}
	return commands[r.IntN(len(commands))]()
}

func TestDumpRoundTrip(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{}
	for seed := range uint64(40) {
		from, c := newTestEngine(t)
		r := rand.New(rand.NewPCG(seed, 1))
		for range 150 {
			args := randomCommand(r)
			c.do(args...)
			c.err = nil
		}
		commands := mustDump(t, from)
		to, _ := newTestEngine(t)
		if err := to.load(commands); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		to.ticked = from.ticked
		compareDumps(t, seed, commands, mustDump(t, to))
		for _, args := range commands {
			kinds[args[0]] = true
		}
		// Both engines go on in the same way: the last IDs of streams are the same.
		next := newConsole(to.server, to.inScript)
		for i := range 3 {
			key := "stream" + strconv.Itoa(i)
			before := field(c.do("XINFO", "STREAM", key), "last-generated-id")
			after := field(next.do("XINFO", "STREAM", key), "last-generated-id")
			c.err, next.err = nil, nil
			if before != "" && before != after {
				t.Errorf("seed %d: last ID of %s: %s, want %s", seed, key, after, before)
			}
		}
		from.Close()
		to.Close()
	}
	for _, name := range []string{"SET", "HSET", "SADD", "ZADD", "XADD", "XDEL", "XGROUP", "XCLAIM", "PEXPIREAT"} {
		if !kinds[name] {
			t.Errorf("no dump has the command %s", name)
		}
	}
}

// compareDumps compares all but small differences of times: engines count them in
// milliseconds from the moment when they run a command.
func compareDumps(t *testing.T, seed uint64, want, got [][]string) {
	t.Helper()
	near := func(a, b string) bool {
		x, err1 := strconv.ParseInt(a, 10, 64)
		y, err2 := strconv.ParseInt(b, 10, 64)
		return err1 == nil && err2 == nil && max(x-y, y-x) <= time.Minute.Milliseconds()
	}
	same := func(a, b []string) bool {
		if len(a) != len(b) {
			return false
		}
		for i := range a {
			moment := a[0] == "PEXPIREAT" && i == 2 || a[0] == "XCLAIM" && i == 7
			if a[i] != b[i] && !(moment && near(a[i], b[i])) {
				return false
			}
		}
		return true
	}
	if !slices.EqualFunc(want, got, same) {
		t.Errorf("seed %d: restored:\n%q\nwant:\n%q", seed, got, want)
	}
}

func TestExpiryIsAbsolute(t *testing.T) {
	t.Parallel()
	from, c := newTestEngine(t)
	at := time.Now().Add(time.Hour).UnixMilli()
	c.do("SET", "later", "v")
	c.do("PEXPIREAT", "later", strconv.FormatInt(at, 10))
	c.do("SET", "past", "v")
	commands := mustDump(t, from)
	for _, args := range commands {
		if moment, _ := strconv.ParseInt(args[len(args)-1], 10, 64); args[0] == "PEXPIREAT" && max(moment-at, at-moment) > time.Minute.Milliseconds() {
			t.Errorf("%q: want about %d", args, at)
		}
	}
	to, _ := newTestEngine(t)
	testkit.Must(t, to.load(append(commands, []string{"PEXPIREAT", "past", "1000"})))
	if got := to.Keys(); !slices.Equal(got, []string{"later"}) {
		t.Errorf("restored %q, want only the key that has not expired", got)
	}
}

func TestDumpDoesNotInterruptScripts(t *testing.T) {
	t.Parallel()
	e, _ := newTestEngine(t)
	var writers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		writers.Go(func() {
			c := newConsole(e.server, nil)
			c.do("AUTH", "secret")
			for {
				select {
				case <-done:
					return
				default:
					c.do("EVAL", "redis.call('INCR', 'a') redis.call('INCR', 'b') return 1", "0")
				}
			}
		})
	}
	for range 200 {
		commands := mustDump(t, e)
		if len(commands) > 0 && (len(commands) != 2 || commands[0][2] != commands[1][2]) {
			t.Errorf("dump %q, want the same number for a and b", commands)
		}
	}
	close(done)
	writers.Wait()
}

func TestFailedLoadLeavesEngineEmpty(t *testing.T) {
	t.Parallel()
	e, c := newTestEngine(t)
	if err := e.load([][]string{{"SET", "k", "v"}, {"HSET", "k", "f", "v"}}); err == nil || !strings.Contains(err.Error(), "HSET") {
		t.Errorf("load: %v, want the failed command", err)
	}
	if got := e.Keys(); len(got) != 0 {
		t.Errorf("keys after a failed load: %q", got)
	}
	if reply := c.do("SET", "k", "v"); reply != server.Simple("OK") {
		t.Errorf("SET: %v, %v", reply, c.err)
	}
}
