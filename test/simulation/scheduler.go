package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/channel"
	"telapi/internal/session"
	"telapi/internal/sqlstore"
	"telapi/test/testkit"
)

const (
	shortRun = 25 * time.Second // with traffic and faults
	longRun  = time.Hour
	minCalm  = 25 * time.Second // without either; longer than instances take to check for lost frames
	maxCalm  = 75 * time.Second // after which everything must be settled
)

// The sessions' team and endpoint.
const teamID, endpointID = "team", "endpoint"

// world is one run: all processes, the store, and the seed from which every
// decision comes.
type world struct {
	seed  uint64
	began time.Time

	replicas int           // that confirm what is acknowledged
	nodes    int           // of the store
	embedded bool          // the store is part of the only instance, and is saved as snapshots
	small    bool          // the scripts have small limits
	deletion bool          // a session is deleted
	active   time.Duration // with traffic and faults
	pace     time.Duration // between two actions of an actor, at most
	ping     time.Duration // interval between pings of browsers

	store     *store
	disk      disk
	audit     *audit
	ledger    *ledger
	db        *sqlstore.Store
	instances []*instance
	runtimes  []*runtimeNode
	browsers  []*browser
	done      chan struct{}  // closed at the end of the run
	running   sync.WaitGroup // all goroutines of the simulation itself
	quiet     atomic.Bool

	mu    sync.Mutex
	lines []string
}

// rng returns the random numbers of one actor. They depend only on the seed and
// the actor, so that the order in which actors run does not matter.
func (w *world) rng(parts ...any) *rand.Rand {
	return rand.New(rand.NewPCG(w.seed, w.key(parts...)))
}

// key returns a number that depends only on the seed and the given values.
func (w *world) key(parts ...any) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, w.seed, parts)
	return h.Sum64()
}

// mix returns a random number for a moment. What happened before does not
// matter: if two runs differ in the order of simultaneous events, they do not
// drift apart.
func mix(key uint64, at time.Time) uint64 {
	z := key + uint64(at.UnixNano())*0x9e3779b97f4a7c15 // wraps around
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (w *world) trace(actor, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf("%11.6f  %-10s %s", time.Since(w.began).Seconds(), actor, fmt.Sprintf(format, args...)))
}

func (w *world) processName(name string, life int) string { return fmt.Sprintf("%s#%d", name, life) }

func (w *world) faultsEnded() bool { return w.quiet.Load() }

func (w *world) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// sleep returns false if the run ends first.
func (w *world) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.done:
		return false
	}
}

func (w *world) runningInstances() (list []*serviceProcess) {
	for _, i := range w.instances {
		if p := i.current(); p != nil {
			list = append(list, p)
		}
	}
	return list
}

// Result is the outcome of a run.
type Result struct {
	Seed       uint64
	Violations []string
	Trace      []string
}

// Failure describes a run with violations: they come first, then the trace.
func (r Result) Failure() string {
	return fmt.Sprintf("seed %d: %d violations\n  %s\n%s\nseed %d: %d violations\n  %s\nReplay it with: make simulate SEED=%d", r.Seed,
		len(r.Violations), strings.Join(r.Violations, "\n  "), strings.Join(r.Trace, "\n"), r.Seed, len(r.Violations), strings.Join(r.Violations, "\n  "), r.Seed)
}

// newWorld draws what kind of world a seed has.
func newWorld(seed uint64) *world {
	w := &world{seed: seed, began: time.Now(), nodes: 1, active: shortRun, pace: 2500 * time.Millisecond, ping: 4 * time.Second, done: make(chan struct{})}
	rng := w.rng("world")
	switch n := rng.IntN(100); {
	case n < 40: // a server
	case n < 70:
		w.replicas = 1
	case n < 80:
		w.nodes = 2
	case n < 90:
		w.nodes, w.replicas = 2, 1
	default:
		w.embedded = true
	}
	w.small, w.deletion = rng.IntN(3) == 0, rng.IntN(5) == 0
	if rng.IntN(150) == 0 {
		w.active, w.pace, w.ping = longRun, 3*time.Minute, 25*time.Second
	} else if rng.IntN(4) == 0 {
		w.pace, w.ping = 12*time.Second, 25*time.Second // a message whose notice is lost is not found by the next one, or by a ping
	}
	w.trace("scheduler", "nodes: %d, replicas: %d, embedded: %v, small limits: %v, deletion: %v, for %v", w.nodes, w.replicas, w.embedded, w.small, w.deletion, w.active)
	return w
}

// run simulates one seed. It must be called in a synctest bubble.
func run(t *testing.T, seed uint64, dataDir string) Result {
	t.Helper()
	w := newWorld(seed)
	w.store, w.audit = newStore(w), newAudit(w)
	w.ledger = &ledger{world: w, actions: map[string]bool{}, crashes: map[*host]time.Time{}}
	db, err := sqlstore.Open(sqlstore.Options{DataDir: dataDir})
	testkit.Must(t, err)
	testkit.Must(t, db.Migrate(t.Context()))
	w.db = db
	w.build(t)
	w.play()
	w.settle()
	w.ledger.check()
	w.endChannels()
	w.stop()
	w.ledger.checkMemory()
	w.store.close()
	time.Sleep(time.Minute) // the client of a cluster cannot be stopped while it waits to refresh its topology
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	return Result{seed, w.ledger.violations, w.lines}
}

// build creates the sessions and starts all processes.
func (w *world) build(t *testing.T) {
	t.Helper()
	rng := w.rng("build")
	pause := func() { time.Sleep(time.Duration(1 + rng.Int64N(int64(300*time.Millisecond)))) }
	for n := range 2 {
		if n == 0 || !w.embedded {
			w.instances = append(w.instances, &instance{world: w, name: fmt.Sprintf("instance%d", n+1)})
		}
		w.runtimes = append(w.runtimes, &runtimeNode{world: w, name: fmt.Sprintf("runtime%d", n+1)})
	}
	for n := range 1 + rng.IntN(2) {
		name := fmt.Sprintf("browser%d", n+1)
		s := session.Session{
			ID: fmt.Sprintf("ses_%d_%d", w.seed, n+1), TeamID: teamID, EndpointID: endpointID, Mode: "chat", DuplicatePolicy: session.Replace,
			TokenID: name, IssuedAt: time.Now(), RedeemBy: time.Now().Add(time.Hour), ExpiresAt: time.Now().Add(longRun + time.Hour),
		}
		if rng.IntN(3) == 0 {
			s.DuplicatePolicy = session.Reject
		}
		testkit.Must(t, testkit.ErrorOf(w.db.CreateSession(t.Context(), s, session.IdempotencyRecord{}, time.Time{})))
		r := &channelRecord{ledger: w.ledger, id: s.ID, name: name, entries: map[string]string{}, numbers: map[string]int{}, arrived: map[string]bool{}, arrivals: map[string]time.Time{}, handshakes: map[*host]int{}, lastHandshake: map[*host]time.Time{}}
		w.ledger.channels = append(w.ledger.channels, r)
		w.browsers = append(w.browsers, &browser{
			world: w, name: name, record: r, path: newHost(w, name), rng: w.rng(name), events: newMailbox[event](),
			info: channel.SessionInfo{
				Offer:           wire.Offer{SessionID: s.ID, TeamID: teamID, EndpointID: endpointID, Mode: "chat"},
				RejectDuplicate: s.DuplicatePolicy == session.Reject, ExpiresAt: s.ExpiresAt,
			},
		})
	}
	for n := range w.runtimes {
		if n < len(w.instances) {
			w.instances[n].start()
		}
		pause()
		w.runtimes[n].start()
		pause()
	}
	for _, b := range w.browsers {
		w.running.Go(b.run)
	}
}

// play applies the faults of the seed while there is traffic.
func (w *world) play() {
	for _, f := range w.drawFaults() {
		time.Sleep(f.at - time.Since(w.began))
		f.apply()
	}
	if rest := w.active - time.Since(w.began); rest > 0 {
		time.Sleep(rest)
	}
}

// settle repairs everything and waits until nothing is under way.
func (w *world) settle() {
	w.trace("scheduler", "faults ended")
	w.quiet.Store(true)
	for _, i := range w.instances {
		i.start()
		time.Sleep(time.Millisecond)
	}
	for _, r := range w.runtimes {
		r.start()
	}
	for since := time.Now(); time.Since(since) < maxCalm; time.Sleep(time.Second) {
		if time.Since(since) > minCalm && w.ledger.settled() {
			return
		}
	}
}

// endChannels ends all channels by their runtimes.
func (w *world) endChannels() {
	for _, r := range w.ledger.channels {
		r.mu.Lock()
		t, ended := r.active, r.ended
		r.mu.Unlock()
		if ended {
			continue
		}
		if t == nil {
			r.violation("no runtime has the channel after %v without faults", maxCalm)
			continue
		}
		r.mu.Lock()
		r.ended = true
		r.mu.Unlock()
		ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
		if err := t.End(ctx, "done"); err != nil {
			r.violation("the channel could not be ended without faults: %s", reason(err))
		}
		cancel()
	}
	time.Sleep(3 * time.Second)
	for _, r := range w.ledger.channels {
		r.checkEnd()
	}
}

// stop ends all processes.
func (w *world) stop() {
	close(w.done)
	for _, n := range w.runtimes {
		n.mu.Lock()
		p := n.process
		n.process = nil
		n.mu.Unlock()
		if p != nil {
			p.close()
		}
	}
	for _, i := range w.instances {
		i.stop()
	}
	w.running.Wait()
}

// plannedFault is a fault at its time.
type plannedFault struct {
	at    time.Duration
	apply func()
}

// draw returns the faults of the seed.
func (w *world) drawFaults() []plannedFault {
	f := &injector{world: w, rng: w.rng("plan")}
	for range 2 + f.rng.IntN(5) {
		f.draw(f.seconds(3, w.active.Seconds()-2))
	}
	if w.deletion {
		f.delete(f.seconds(max(3, w.active.Seconds()-120), w.active.Seconds())) // its entries are checked before they expire
	}
	sort.SliceStable(f.plan, func(i, j int) bool { return f.plan[i].at < f.plan[j].at })
	return f.plan
}
