package redisstore

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/config"
	"telapi/internal/kv"
	"telapi/test/testkit"
)

var replaySeed = flag.Uint64("seed", 0, "replay TestFastScriptsMatchFullScripts with this seed only")

// TestFastScriptsMatchFullScripts runs the same random operations on two channels.
// One uses the fast versions, which fall back to the full scripts; the other uses the
// full scripts only. After every operation, replies, keys and pub/sub notices must be
// equal.
func TestFastScriptsMatchFullScripts(t *testing.T) {
	fixed, random := []uint64{1, 2, 10919758110046922958}, rand.Uint64() // the third fills a set of message IDs between two checks of its members
	if *replaySeed != 0 {
		fixed, random = nil, *replaySeed
	}
	for name, start := range map[string]func(*testing.T) scriptEngine{"embedded": startEmbeddedScripts, "redis": startRedisScripts} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine, tried := start(t), fixed
			if name == "embedded" && len(fixed) > 0 { // slower, and the scripts are the same
				tried = fixed[1:]
			}
			calls := map[string]int{}
			for _, seed := range tried {
				s := newSimulation(t, engine, seed)
				s.run(300)
				s.release()
				for script, n := range s.calls {
					calls[script] += n
				}
			}
			for _, script := range []string{"callback", "frame"} {
				n, err := engine.client.Do(t.Context(), engine.client.B().Get().Key(fallbackCount+script).Build()).AsInt64()
				if len(tried) > 0 && (err != nil || n == 0 || n == int64(calls[script])) {
					t.Errorf("%s: the full script ran in %d of %d calls, %v; want both versions covered", script, n, calls[script], err)
				}
			}
			s := newSimulation(t, engine, random) // it may cover one version only
			s.run(300)
			s.release()
		})
	}
}

// TestFastFrameScriptAcceptsFramesBeforeClaim covers the frames that a browser sends
// until a runtime has claimed its session.
func TestFastFrameScriptAcceptsFramesBeforeClaim(t *testing.T) {
	t.Parallel()
	engine := startEmbeddedScripts(t)
	exec := func(script string, args ...string) []rueidis.RedisMessage {
		t.Helper()
		reply, err := rueidis.NewLuaScript(script).Exec(t.Context(), engine.client, kv.ChannelKeys("channel"), append(args, "")).ToArray()
		testkit.Must(t, err)
		return reply
	}
	connect := []string{"connection", "", "", "", "60000", "", "", "", `{"kind":"session"}`, "{}", firstEpoch, "team", "endpoint", "chat", "", "", "{}"}
	attached := exec(kv.ChannelScript("connect"), append(connect, kv.LimitArgs(wire.DefaultChannelLimits())...)...)
	lastEntry, _ := attached[4].ToString()
	fastOnly := strings.Replace(kv.ChannelScript("frame"), kv.Script("parts/core"), "do return redis.error_reply('ERR the fast version did not handle it') end\n", 1)
	outcomes := exec(fastOnly, "connection", "1", lastEntry, "c", "id", `{"kind":"frame"}`)
	if outcome, _ := outcomes[1].ToString(); outcome != "appended" {
		t.Errorf("outcome is %q, want appended", outcome)
	}
}

const (
	fallbackCount = "test:full:"
	testClock     = "test:clock"
	testBarrier   = "test:barrier"
)

// scriptEngine runs scripts under a clock that the test sets.
type scriptEngine struct {
	client   rueidis.Client
	setClock func(time.Time)
	prepare  func(script string) string // makes a script use the test's clock
	exactTTL bool
}

func startEmbeddedScripts(t *testing.T) scriptEngine {
	m := miniredis.RunT(t)
	client := newScriptClient(t, Options{RedisOptions: config.RedisOptions{Addrs: []string{m.Addr()}, Embedded: true}})
	return scriptEngine{client, m.SetTime, func(script string) string { return script }, true}
}

// startRedisScripts starts a Redis server. Its scripts read the time from a key.
func startRedisScripts(t *testing.T) scriptEngine {
	client := newScriptClient(t, redisOptions(testkit.StartRedis(t)))
	setClock := func(now time.Time) {
		err := client.Do(t.Context(), client.B().Hset().Key(testClock).FieldValue().FieldValue("s", fmt.Sprint(now.Unix())).
			FieldValue("us", fmt.Sprint(now.Nanosecond()/1000)).Build()).Error()
		testkit.Must(t, err)
	}
	prepare := func(script string) string {
		const clock = "redis.call('TIME')"
		if strings.Count(script, clock) != 1 {
			t.Fatalf("a script reads the clock %d times, want 1", strings.Count(script, clock))
		}
		return strings.Replace(script, clock, "redis.call('HMGET', '"+testClock+"', 's', 'us')", 1)
	}
	return scriptEngine{client, setClock, prepare, false}
}

func newScriptClient(t *testing.T, opts Options) rueidis.Client {
	t.Helper()
	option := opts.client()
	option.ConnWriteTimeout = testkit.Timeout
	client, err := rueidis.NewClient(option)
	testkit.Must(t, err)
	t.Cleanup(client.Close)
	return client
}

// simulation drives two channels through the same operations.
type simulation struct {
	*testing.T
	callGenerator
	engine   scriptEngine
	seed     uint64
	channels [2]*simulatedChannel
	barrier  chan string
	calls    map[string]int
	log      []string
	release  func()
}

// simulatedChannel is one of the two channels. Their IDs have the same length, so
// that their entries have the same size.
type simulatedChannel struct {
	id      string
	scripts map[string]*rueidis.Lua
	notices []string
	state   string
}

func newSimulation(t *testing.T, engine scriptEngine, seed uint64) *simulation {
	t.Helper()
	s := &simulation{T: t, engine: engine, seed: seed, barrier: make(chan string, 1), calls: map[string]int{}}
	s.callGenerator = newCallGenerator(rand.New(rand.NewPCG(seed, 0)))
	for i, variant := range []string{"fast", "full"} {
		s.channels[i] = &simulatedChannel{id: fmt.Sprintf("%s-%d", variant, seed), scripts: channelScripts(engine, variant == "fast")}
	}
	conn, release := engine.client.Dedicate()
	s.release = release
	subscribed := make(chan struct{}, 8)
	topics := []string{testBarrier}
	for _, c := range s.channels {
		topics = append(topics, kv.RuntimeTopic(c.id), kv.BrowserTopic(c.id))
	}
	conn.SetPubSubHooks(rueidis.PubSubHooks{
		OnSubscription: func(rueidis.PubSubSubscription) { subscribed <- struct{}{} },
		OnMessage: func(m rueidis.PubSubMessage) {
			if m.Channel == testBarrier {
				s.barrier <- m.Message
				return
			}
			for _, c := range s.channels {
				if m.Channel == kv.RuntimeTopic(c.id) || m.Channel == kv.BrowserTopic(c.id) {
					c.notices = append(c.notices, c.maskID(m.Channel+" "+m.Message))
				}
			}
		},
	})
	testkit.Must(t, conn.Do(t.Context(), conn.B().Subscribe().Channel(topics...).Build()).Error())
	for range topics {
		<-subscribed
	}
	return s
}

// run executes up to steps operations. It stops 20 operations after the channel has
// ended.
func (s *simulation) run(steps int) {
	s.Helper()
	for step := 0; step < steps; step++ {
		s.advanceClock()
		s.engine.setClock(s.now)
		script, args := s.next()
		args = append(args, s.deadline())
		s.calls[script]++
		s.log = append(s.log, fmt.Sprintf("%s %s %.300s", s.now.Format(time.StampMilli), script, fmt.Sprintf("%q", args)))
		var outcomes [2]string
		for i, c := range s.channels {
			c.notices = nil
			outcomes[i] = s.execute(c, script, args)
		}
		s.drain()
		for i, c := range s.channels {
			c.state = s.dump(c, step%20 == 0 || step == steps-1)
			outcomes[i] = "reply: " + outcomes[i] + "\nnotices:\n" + strings.Join(c.notices, "\n") + "\n" + c.state
		}
		if outcomes[0] != outcomes[1] {
			s.Fatalf("seed %d, step %d: the fast and the full script differ.\n%s\n%s", s.seed, step,
				strings.Join(s.log[max(0, len(s.log)-5):], "\n"), firstDifference(outcomes[0], outcomes[1]))
		}
		s.record(script, args, outcomes[0])
		if strings.Contains(s.channels[0].state, "state = ended") {
			steps = min(steps, step+20)
		}
	}
}

// execute runs a script on a channel and returns its reply.
func (s *simulation) execute(c *simulatedChannel, script string, args []string) string {
	s.Helper()
	channelArgs := make([]string, len(args))
	for i, arg := range args {
		channelArgs[i] = strings.ReplaceAll(arg, anyChannel, c.id)
	}
	reply, err := c.scripts[script].Exec(s.Context(), s.engine.client, kv.ChannelKeys(c.id), channelArgs).ToMessage()
	if _, isRedisErr := rueidis.IsRedisErr(err); err != nil && !isRedisErr {
		s.Fatalf("seed %d: %s: %v", s.seed, script, err)
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return c.maskID(reply.String())
}

// drain waits until every notice that was published so far has been received.
func (s *simulation) drain() {
	s.Helper()
	id := fmt.Sprint(len(s.log))
	client := s.engine.client
	testkit.Must(s, client.Do(s.Context(), client.B().Publish().Channel(testBarrier).Message(id).Build()).Error())
	if got := <-s.barrier; got != id {
		s.Fatalf("barrier %s, want %s", got, id)
	}
}

// maskID replaces the channel's ID in text.
func (c *simulatedChannel) maskID(text string) string {
	return strings.ReplaceAll(text, c.id, anyChannel)
}

// dump returns the content of all keys of a channel, one item per line. For streams,
// that is the newest items, the oldest one and the length, since earlier steps
// compared the rest. For sets, it is the size and, if members is set, the members.
func (s *simulation) dump(c *simulatedChannel, members bool) string {
	s.Helper()
	keys, b := kv.ChannelKeys(c.id), s.engine.client.B
	var commands rueidis.Commands
	for i, key := range keys {
		switch i {
		case 0, 5:
			commands = append(commands, b().Hgetall().Key(key).Build())
		case 1, 2:
			commands = append(commands, b().Xrevrange().Key(key).End("+").Start("-").Count(100).Build(),
				b().Xrange().Key(key).Start("-").End("+").Count(1).Build(), b().Xlen().Key(key).Build())
		case 6:
			commands = append(commands, b().Zrange().Key(key).Min("0").Max("-1").Withscores().Build())
		default:
			commands = append(commands, b().Scard().Key(key).Build())
			if members {
				commands = append(commands, b().Smembers().Key(key).Build())
			}
		}
		commands = append(commands, b().Pttl().Key(key).Build())
	}
	var names, lines []string
	for _, command := range commands {
		names = append(names, strings.Join(command.Commands()[:2], " "))
	}
	for i, reply := range s.engine.client.DoMulti(s.Context(), commands...) {
		message, err := reply.ToMessage()
		testkit.Must(s, err)
		command, _, _ := strings.Cut(names[i], " ")
		lines = append(append(lines, names[i]+":"), s.items(command, message)...)
	}
	return c.maskID(strings.Join(lines, "\n"))
}

// items splits the reply to one of dump's commands into lines.
func (s *simulation) items(command string, reply rueidis.RedisMessage) (items []string) {
	s.Helper()
	var err error
	switch command {
	case "HGETALL":
		var fields map[string]string
		fields, err = reply.AsStrMap()
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			items = append(items, name+" = "+fields[name])
		}
	case "SMEMBERS":
		items, err = reply.AsStrSlice()
		slices.Sort(items)
	case "PTTL":
		var ttl int64
		if ttl, err = reply.AsInt64(); !s.engine.exactTTL {
			ttl = min(ttl, 0) // -2: no key, -1: no TTL
		}
		items = []string{fmt.Sprint(ttl)}
	default:
		var value any
		value, err = reply.ToAny()
		items = []string{fmt.Sprint(value)}
	}
	testkit.Must(s, err)
	return items
}

func firstDifference(a, b string) string {
	left, right := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(left), len(right)) {
		if left[i] != right[i] {
			return fmt.Sprintf("fast: %.2000s\nfull: %.2000s", left[i], right[i])
		}
	}
	return fmt.Sprintf("fast has %d lines, full has %d", len(left), len(right))
}

// channelScripts returns all channel scripts, with or without their fast versions.
func channelScripts(engine scriptEngine, fast bool) map[string]*rueidis.Lua {
	scripts := map[string]*rueidis.Lua{}
	for _, name := range []string{"callback", "frame"} {
		text := kv.FullChannelScript(name)
		if fast { // count fallbacks
			core := kv.Script("parts/core")
			text = strings.Replace(kv.ChannelScript(name), core, "redis.call('INCR', '"+fallbackCount+name+"')\n"+core, 1)
		}
		scripts[name] = rueidis.NewLuaScript(engine.prepare(text))
	}
	for _, name := range []string{"connect", "check_credential", "stream", "await", "cancel", "claim", "commit", "detach", "end", "renew", "send", "since", "touch"} {
		scripts[name] = rueidis.NewLuaScript(engine.prepare(kv.ChannelScript(name)))
	}
	return scripts
}

// padding returns a number of bytes for an entry. A notice does not have entries that are
// too large.
func (g *callGenerator) padding() int {
	if g.IntN(50) == 0 {
		return 9000
	}
	return g.IntN(60)
}

// committed returns a position to commit with another call, or nothing.
func (g *callGenerator) committed() string {
	if g.chance(30) {
		return g.position()
	}
	return ""
}
