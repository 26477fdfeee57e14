package simulation

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"telapi/internal/kv"
)

// scriptNames are the channel scripts, by the SHA-1 with which clients call them.
var scriptNames = func() map[string]string {
	names := map[string]string{}
	for _, name := range kv.ScriptNames() {
		names[digest(kv.Script(name))] = name
	}
	return names
}()

func digest(text string) string {
	sum := sha1.Sum([]byte(text)) // how Redis names scripts
	return hex.EncodeToString(sum[:])
}

// logged lists the commands that a rebuilt store has to run again.
var logged = []string{"EVAL", "EVALSHA", "XADD", "XDEL", "SREM", "DEL", "ZREM", "SET"}

// store is the key-value store: the embedded engine, which has the data of all nodes, and
// the log of its writes. One command runs at a time.
type store struct {
	world *world

	mu       sync.Mutex
	engine   *miniredis.Miniredis
	ticked   time.Time // until when TTLs have been counted down
	log      []command
	writes   int
	nodes    []storeNode
	sessions []*peerConn   // open ones, oldest first
	added    chan struct{} // closed and replaced when a stream has grown
	traps    []trap
	texts    map[string]string    // scripts by their digests
	removals map[string][]removal // by channel, in a world with small limits
}

// maxSkew is by how much the clocks of a cluster's nodes differ.
const maxSkew = 2 * time.Second

// storeNode is a server, or one of a cluster. Its replica gets its writes in order. In a
// failover it has at least those that WAIT has confirmed.
type storeNode struct {
	offset      time.Duration // of its clock from the simulation's
	upAgain     time.Time
	replicaLeft time.Time
	replicaBack time.Time // until then it gets no writes, and WAIT confirms nothing
	confirmed   int       // number of the newest confirmed write
	failovers   int
}

// trap is a fault that waits for the next call of a script.
type trap struct {
	script string
	action string        // of claim; empty: any
	hold   time.Duration // delay of the request
	delay  time.Duration // delay of replies to its host. If both delays are 0, the reply is lost
	then   func()        // called when it has caught a request; may be nil
}

// command is one executed command.
type command struct {
	host    *host
	node    int
	number  int    // of the write
	script  string // name of the channel script; empty for other commands
	channel string
	args    []string // the whole command; of a script, see argv
	reply   []string // flat
	sent    time.Time
	at      time.Time // simulation time
	clock   time.Time // the node's time
}

// argv returns the arguments of a script, from 0.
func (c command) argv() []string { return c.args[3+channelKeys:] }

func newStore(w *world) *store {
	s := &store{world: w, engine: newEngine(), ticked: time.Now(), nodes: make([]storeNode, w.nodes), added: make(chan struct{}), texts: map[string]string{}, removals: map[string][]removal{}}
	for n := range s.nodes[1:] { // the clocks of a cluster differ
		s.nodes[n+1].offset = time.Duration(w.rng("clock", n).Int64N(int64(2*maxSkew))) - maxSkew
	}
	return s
}

// address returns how clients connect to a node.
func address(node int) string { return fmt.Sprintf("store%d:6379", node) }

func (s *store) addresses() (list []string) {
	for n := range s.nodes {
		list = append(list, address(n))
	}
	return list
}

// slots returns the reply to CLUSTER SLOTS.
func (s *store) slots() string {
	if len(s.nodes) == 1 {
		return "-ERR This instance has cluster support disabled\r\n"
	}
	reply := fmt.Sprintf("*%d\r\n", len(s.nodes))
	for n, size := 0, 16384/len(s.nodes); n < len(s.nodes); n++ {
		reply += fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*3\r\n$6\r\nstore%d\r\n:6379\r\n$5\r\nnode%d\r\n", n*size, (n+1)*size-1, n, n)
	}
	return reply
}

func newEngine() *miniredis.Miniredis {
	engine := miniredis.NewMiniRedis()
	if conn, err := engine.Dial(); err == nil { // starts the engine without a listener
		_ = conn.Close()
	}
	return engine
}

func (s *store) up(node int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !time.Now().Before(s.nodes[node].upAgain)
}

// setTime sets the time of a node's next command and lets keys expire. The caller holds mu.
func (s *store) setTime(at, clock time.Time) {
	s.engine.SetTime(clock)
	if elapsed := at.Sub(s.ticked).Truncate(time.Millisecond); elapsed > 0 {
		s.engine.FastForward(elapsed)
		s.ticked = s.ticked.Add(elapsed)
	}
}

// step moves the clock of a node.
func (s *store) step(node int, by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[node].offset += by
}

// awayReplica disconnects the replica of a node.
func (s *store) awayReplica(node int, length time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.nodes[node]
	if !time.Now().Before(n.replicaBack) {
		n.replicaLeft = time.Now()
	}
	n.replicaBack = time.Now().Add(length)
}

// confirm is WAIT for the writes up to a number. It returns when to try again; zero if the
// replica has them.
func (s *store) confirm(node, number int) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.nodes[node]
	if time.Now().Before(n.replicaBack) {
		return n.replicaBack
	}
	n.confirmed = max(n.confirmed, number)
	return time.Time{}
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
	name, _ := s.world.scriptOf(args)
	for i, t := range s.traps {
		if t.script == name && (t.action == "" || command{args: args}.argv()[3] == t.action) && !s.world.faultsEnded() {
			s.traps = slices.Delete(s.traps, i, i+1)
			return t
		}
	}
	return trap{}
}

// failover replaces a node by its replica, which lags behind: the unconfirmed writes after
// a time are lost, or those since the replica has left, and connections break. Subscriptions survive if another node of the
// cluster serves them. It returns the lost commands.
func (s *store) failover(node int, after time.Time, outage time.Duration, subscriptionsSurvive bool) (lost []command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; time.Now().Before(n.replicaBack) && n.replicaLeft.Before(after) {
		after = n.replicaLeft
	}
	var kept []command
	for _, c := range s.log {
		if c.node == node && c.at.After(after) && c.number > s.nodes[node].confirmed {
			lost = append(lost, c)
		} else {
			kept = append(kept, c)
		}
	}
	s.log = kept
	var surviving []*peerConn
	for _, c := range s.sessions {
		if c.node != node || subscriptionsSurvive && len(c.topics) > 0 {
			surviving = append(surviving, c)
			c.unsubscribe()
			continue
		}
		c.kill()
		c.link.reset(false)
	}
	s.sessions = surviving
	old := s.engine
	s.engine, s.ticked = newEngine(), s.world.began
	for _, c := range surviving {
		c.moveTo(s.engine)
	}
	peer := server.NewPeer(bufio.NewWriter(&bytes.Buffer{}))
	for _, c := range s.log {
		args := c.args
		if text := s.texts[args[1]]; strings.EqualFold(args[0], "EVALSHA") && text != "" { // the command that loaded it may be lost
			args = append([]string{"EVAL", text}, args[2:]...)
		}
		s.setTime(c.at, c.clock)
		s.engine.Server().Dispatch(peer, args)
	}
	s.nodes[node].upAgain = time.Now().Add(outage)
	s.nodes[node].failovers++
	close(s.added)
	s.added = make(chan struct{})
	old.Close()
	return lost
}

// convertTimes replaces the times of a channel's entries, which are of the clock of its node,
// by those of the simulation.
func (s *store) convertTimes(channelID string, list []streamed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := map[int64]time.Time{}
	for _, c := range s.log {
		if c.channel == channelID {
			times[c.clock.UnixMilli()] = c.at
		}
	}
	for i := range list {
		if at, known := times[list[i].at.UnixMilli()]; known {
			list[i].at = at
		}
	}
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
	name := strings.ToUpper(args[0])
	switch {
	case name == "HELLO": // the clients use RESP2 then
		return []byte("-ERR unknown command 'HELLO'\r\n")
	case name == "INFO":
		text := fmt.Sprintf("master_replid:%d-%d\r\n", c.node, s.nodes[c.node].failovers)
		return fmt.Appendf(nil, "$%d\r\n%s\r\n", len(text), text)
	case name == "CLUSTER" && strings.EqualFold(args[1], "INFO"):
		return []byte("+cluster_state:ok\r\n")
	case name == "CLUSTER":
		return []byte(s.slots())
	}
	now := time.Now()
	done := command{host: c.host, node: c.node, args: args, sent: sent, at: now, clock: now.Add(s.nodes[c.node].offset)}
	done.script, done.args = s.world.scriptOf(args)
	s.setTime(done.at, done.clock)
	c.mu.Lock()
	c.muted, c.output = true, nil
	c.mu.Unlock()
	s.engine.Server().Dispatch(c.peer, done.args)
	c.peer.Flush()
	c.mu.Lock()
	reply, c.muted = c.output, c.closed
	c.mu.Unlock()
	switch name {
	case "SUBSCRIBE":
		c.topics = append(c.topics, args[1:]...)
	case "UNSUBSCRIBE":
		c.topics = slices.DeleteFunc(c.topics, func(topic string) bool { return slices.Contains(args[1:], topic) })
	}
	if done.script != "" {
		done.channel = channelOf(done.args[3])
	}
	if !slices.Contains(logged, name) || args[1] == kv.ProbeKey || string(reply) == "*-1\r\n" || bytes.HasPrefix(reply, []byte("-NOSCRIPT")) {
		return reply
	}
	if name == "EVAL" {
		s.texts[digest(args[1])] = args[1]
	}
	s.writes++
	c.wrote, done.number, done.reply = s.writes, s.writes, flatten(reply)
	s.log = append(s.log, done)
	if done.script == "" { // it may be an offer
		close(s.added)
		s.added = make(chan struct{})
	}
	if done.script != "" {
		s.world.audit.executed(done)
	}
	if slices.Contains([]string{"commit", "send", "await"}, done.script) && s.world.small { // they commit
		s.noteRemoval(done.channel)
	}
	return reply
}
