package simulation

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"telapi/internal/lua"
)

// scriptNames are the channel scripts, by the SHA-1 with which clients call them.
var scriptNames = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"await", "callback", "cancel", "check_connect", "check_credential", "claim", "commit", "confirm", "connect", "detach", "end", "frame", "items", "renew", "send", "since", "touch",
	} {
		names[digest(lua.Channel(name))] = name
	}
	return names
}()

func digest(text string) string {
	sum := sha1.Sum([]byte(text)) // how Redis names scripts
	return hex.EncodeToString(sum[:])
}

// logged lists the commands that a rebuilt store has to run again.
var logged = []string{"EVAL", "EVALSHA", "XADD", "XDEL"}

// store is the key-value store: the embedded engine, the log of its writes and
// its clock. One command runs at a time.
type store struct {
	world *world

	mu       sync.Mutex
	engine   *miniredis.Miniredis
	log      []command
	offset   time.Duration // of the store's clock from the simulation's
	sessions []*peerConn   // open ones, oldest first
	upAgain  time.Time
	added    chan struct{} // closed and replaced when a stream has grown
	traps    []trap
}

// trap is a fault that waits for the next call of a script.
type trap struct {
	script string
	hold   time.Duration // delay of the request
	delay  time.Duration // delay of replies to its host. If both delays are 0, the reply is lost
}

// command is one executed command.
type command struct {
	host    *host
	script  string // name of the channel script; empty for other commands
	channel string
	args    []string // the whole command; of a script, see argv
	reply   []string // flat
	sent    time.Time
	at      time.Time // simulation time
	clock   time.Time // the store's time
}

// argv returns the arguments of a script, from 0.
func (c command) argv() []string { return c.args[3+9:] }

func newStore(w *world) *store {
	return &store{world: w, engine: newEngine(), added: make(chan struct{})}
}

func newEngine() *miniredis.Miniredis {
	engine := miniredis.NewMiniRedis()
	if conn, err := engine.Dial(); err == nil { // starts the engine without a listener
		_ = conn.Close()
	}
	engine.ClockTTL(true)
	return engine
}

func (s *store) up() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.upAgain)
}

// now returns the store's time. The caller holds mu.
func (s *store) now() time.Time { return time.Now().Add(s.offset) }

// step moves the store's clock.
func (s *store) step(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += by
}

// setTrap arms a trap.
func (s *store) setTrap(t trap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.traps = append(s.traps, t)
}

// trapped removes and returns the first trap for a command.
func (s *store) trapped(args []string) (found trap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, _ := s.world.scripts.apply(args)
	for i, t := range s.traps {
		if t.script == name && !s.world.faultsEnded() {
			s.traps = slices.Delete(s.traps, i, i+1)
			return t
		}
	}
	return trap{}
}

// failover replaces the store by a replica that lags behind: the writes of the
// last period are lost, and connections break. Subscriptions survive if
// another node of the cluster serves them. It returns the lost commands.
func (s *store) failover(lag, outage time.Duration, subscriptionsSurvive bool) (lost []command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cut := time.Now().Add(-lag)
	kept := 0
	for kept < len(s.log) && !s.log[kept].at.After(cut) {
		kept++
	}
	lost = slices.Clone(s.log[kept:])
	s.log = s.log[:kept:kept]
	var surviving []*peerConn
	for _, c := range s.sessions {
		if subscriptionsSurvive && len(c.topics) > 0 {
			surviving = append(surviving, c)
			c.unsubscribe()
			continue
		}
		c.kill()
		c.link.reset(false)
	}
	s.sessions = surviving
	old := s.engine
	s.engine = newEngine()
	for _, c := range surviving {
		c.moveTo(s.engine)
	}
	peer := server.NewPeer(bufio.NewWriter(&bytes.Buffer{}))
	for _, c := range s.log {
		s.engine.SetTime(c.clock)
		s.engine.Server().Dispatch(peer, c.args)
	}
	s.upAgain = time.Now().Add(outage)
	close(s.added)
	s.added = make(chan struct{})
	old.Close()
	return lost
}

func (s *store) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.sessions {
		c.kill()
	}
	s.engine.Close()
}

// run executes one command and logs it. The caller holds mu.
func (s *store) run(c *peerConn, args []string, sent time.Time) (reply []byte) {
	done := command{host: c.host, args: args, sent: sent, at: time.Now(), clock: s.now()}
	done.script, done.args = s.world.scripts.apply(args)
	if s.world.mutation.KeepUnknownItems && done.script == "cancel" && s.world.ledger.isUnknown(channelOf(args[3]), done.argv()[1]) {
		return []byte("+no_item\r\n")
	}
	s.engine.SetTime(done.clock)
	c.mu.Lock()
	c.muted, c.output = true, nil
	c.mu.Unlock()
	s.engine.Server().Dispatch(c.peer, done.args)
	c.peer.Flush()
	c.mu.Lock()
	reply, c.muted = c.output, c.closed
	c.mu.Unlock()
	name := strings.ToUpper(args[0])
	switch name {
	case "SUBSCRIBE":
		c.topics = append(c.topics, args[1:]...)
	case "UNSUBSCRIBE":
		c.topics = slices.DeleteFunc(c.topics, func(topic string) bool { return slices.Contains(args[1:], topic) })
	}
	if done.script != "" {
		done.channel = channelOf(done.args[3])
	}
	if !slices.Contains(logged, name) || string(reply) == "*-1\r\n" || bytes.HasPrefix(reply, []byte("-NOSCRIPT")) {
		return reply
	}
	done.reply = flatten(reply)
	s.log = append(s.log, done)
	if done.script == "" { // it may be an offer
		close(s.added)
		s.added = make(chan struct{})
	}
	if done.script != "" {
		s.world.audit.executed(done)
	}
	return reply
}
