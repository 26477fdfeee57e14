package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"telapi/test/harness"
)

// recoveryTimeout is how long a conversation may take to continue after a fault.
// It is long so that the campaign passes on a busy machine.
const recoveryTimeout = 5 * time.Minute

// campaign is an installation with browsers, runtimes and a provider.
type campaign struct {
	*installation
	ctx      context.Context
	ledger   *ledger
	provider *provider
	running  sync.WaitGroup
	traffic  atomic.Bool // browsers start operations
	results  []result

	mu       sync.Mutex
	browsers []*browser
}

// result is a phase that has ended.
type result struct {
	phase    *phase
	mayLose  bool
	recovery time.Duration
}

func newCampaign(t *testing.T, size size, cluster bool, program harness.Program) *campaign {
	t.Helper()
	c := &campaign{installation: install(t, size, cluster, program), ledger: newLedger()}
	ctx, cancel := context.WithCancel(t.Context())
	c.ctx = ctx
	c.provider = newProvider(c.URL, c.client, c.ledger)
	for n := range c.runtimes {
		c.startRuntime(ctx, n, c.ledger, c.provider)
	}
	t.Cleanup(func() {
		cancel()
		c.running.Wait()
		c.provider.running.Wait()
	})
	c.running.Go(c.pace)
	c.join(size.browsers)
	return c
}

// join connects additional browsers, some at a time.
func (c *campaign) join(count int) {
	const batch = 250
	for ; count > 0; count -= batch {
		joined := make([]*browser, min(batch, count))
		var issuing sync.WaitGroup
		for worker := range 8 {
			issuing.Go(func() {
				for i := worker; i < len(joined); i += 8 {
					joined[i] = newBrowser(c.installation, c.ledger)
				}
			})
		}
		issuing.Wait()
		for _, b := range joined {
			c.running.Go(func() { b.Run(c.ctx) })
		}
		c.mu.Lock()
		c.browsers = append(c.browsers, joined...)
		c.mu.Unlock()
		c.probe(joined)
	}
}

// members returns the browsers.
func (c *campaign) members() []*browser {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.browsers
}

// leave deletes the sessions of all browsers but the first ones.
func (c *campaign) leave(kept int) {
	c.mu.Lock()
	leaving := c.browsers[kept:]
	c.browsers = c.browsers[:kept:kept]
	c.mu.Unlock()
	var deleting sync.WaitGroup
	for part := range slices.Chunk(leaving, max(1, len(leaving)/8)) {
		deleting.Go(func() {
			for _, b := range part {
				c.delete(b.Session)
			}
		})
	}
	deleting.Wait()
}

// pace starts operations of random browsers at the campaign's rate while traffic is
// on. It starts up to three at once, so that callbacks can overtake each other, and
// cuts a socket from time to time.
func (c *campaign) pace() {
	const interval = 20 * time.Millisecond
	for due := 0.0; pause(c.ctx, interval); {
		browsers := c.members()
		if !c.traffic.Load() || len(browsers) == 0 {
			due = 0
			continue
		}
		for due += float64(c.size.rate) * interval.Seconds(); due > 0; {
			b := browsers[rand.IntN(len(browsers))]
			for range 1 + rand.IntN(3) {
				b.start(false)
				due--
			}
			if rand.IntN(100) == 0 {
				b.cut()
			}
		}
	}
}

// probe starts an operation of every browser and waits until it is completed. As
// operations of a session complete in order, earlier ones are then completed or lost. An
// operation that takes long may be lost and is repeated, but not so soon that the
// repetitions of many browsers keep the machine busy, and each time later. Only the completion
// of the last repetition counts: one that is still running could be lost to the next fault.
func (c *campaign) probe(browsers []*browser) {
	c.t.Helper()
	since := time.Now()
	waiting, probed := slices.Clone(browsers), map[*browser]time.Time{}
	interval := 10*time.Second + time.Duration(len(browsers))*10*time.Millisecond
	for repeat := since; len(waiting) > 0; {
		if !time.Now().Before(repeat) {
			for _, b := range waiting {
				probed[b] = time.Now()
				b.start(true)
			}
			repeat = time.Now().Add(interval)
			interval *= 2
		}
		if !pause(c.ctx, 20*time.Millisecond) {
			return
		}
		waiting = c.ledger.incomplete(waiting, probed)
		if len(waiting) > 0 && time.Since(since) > recoveryTimeout {
			c.t.Fatalf("%d of %d conversations do not continue; the first:\n%s\n%v", len(waiting), len(browsers),
				c.ledger.describe(waiting[0].Session), c.ledger.takeNotes())
		}
	}
}

// run injects a fault under traffic, once per cycle.
func (c *campaign) run(f fault, operations int) {
	c.t.Helper()
	if f.prepare != nil {
		f.prepare(c)
	}
	r := result{phase: c.ledger.begin(f.name), mayLose: f.mayLose}
	members := len(c.members())
	for cycle := 0; cycle < c.size.cycles || c.ledger.size(r.phase) < operations; cycle++ {
		c.traffic.Store(true)
		started := c.ledger.size(r.phase)
		c.await(func() bool { return c.ledger.size(r.phase) > started+members/2 })
		f.inject(c, cycle)
		ended := time.Now()
		c.probe(c.members())
		r.recovery = max(r.recovery, time.Since(ended))
		c.traffic.Store(false)
		c.probe(c.members())
	}
	c.awaitNotices(r.phase)
	c.leave(members)
	c.results = append(c.results, r)
	c.progress("%s", c.ledger.count(r.phase).with(r).markdown())
	if notes := c.ledger.takeNotes(); len(notes) > 0 {
		c.progress("   %v", notes)
	}
}

// awaitNotices waits until both sides know of everything that was lost. They are
// notified when a lease is renewed.
func (c *campaign) awaitNotices(p *phase) {
	deadline := time.Now().Add(time.Minute)
	c.await(func() bool { return c.ledger.count(p).Silent == 0 || time.Now().After(deadline) })
}

// rows returns the results. Everything that arrived since the end of a phase counts.
func (c *campaign) rows() (rows []row) {
	for _, r := range c.results {
		rows = append(rows, c.ledger.count(r.phase).with(r))
	}
	return rows
}

func (c *campaign) await(ok func() bool) {
	for !ok() && pause(c.ctx, 10*time.Millisecond) {
	}
}

// progress prints a line if the campaign runs on request.
func (c *campaign) progress(format string, args ...any) {
	if *scale > 0 {
		fmt.Fprintf(os.Stdout, time.Now().Format("15:04:05 ")+format+"\n", args...)
	} else {
		c.t.Logf(format, args...)
	}
}

func TestCampaign(t *testing.T) {
	if *scale == 0 {
		t.Parallel()
	}
	size := newSize(*scale)
	faults := 0
	for _, s := range stages {
		faults += len(s.faults)
	}
	results := make([][]row, len(stages))
	t.Run("stage", func(t *testing.T) {
		for i, s := range stages {
			t.Run(s.name, func(t *testing.T) {
				if *scale == 0 {
					t.Parallel()
				}
				results[i] = runStage(t, s, size, size.operations/faults)
			})
		}
	})
	if *scale == 0 {
		return
	}
	text := report(size, results)
	fmt.Println(text)
	complete := !slices.ContainsFunc(results, func(rows []row) bool { return rows == nil })
	if *write != "" && *only == "" && complete {
		if err := writeReport(*write, text); err != nil {
			t.Error(err)
		}
	}
}

// runStage injects the faults of a stage, each with a number of operations.
func runStage(t *testing.T, s stage, size size, operations int) []row {
	faults := slices.DeleteFunc(slices.Clone(s.faults), func(f fault) bool {
		return !strings.Contains(f.name, *only) || *scale == 0 && f.repeated
	})
	if len(faults) == 0 {
		return nil
	}
	c := newCampaign(t, size, s.cluster, "")
	for _, f := range faults {
		c.run(f, operations)
	}
	return c.check(t)
}

// check fails the test if the results break a promise. It returns them.
func (c *campaign) check(t *testing.T) []row {
	t.Helper()
	rows := c.rows()
	for _, r := range rows {
		r.check(t)
	}
	problems := c.ledger.takeProblems()
	for _, p := range problems[:min(len(problems), 20)] {
		t.Error(p)
	}
	if len(problems) > 20 {
		t.Errorf("%d more problems", len(problems)-20)
	}
	return rows
}
