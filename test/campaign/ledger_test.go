package campaign

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// ledger records everything that was acknowledged and everything that arrived, and
// compares the two.
//
// One operation is a round trip: a browser sends a frame, the runtime awaits a work
// item, the provider posts a callback, the runtime sends a message to the browser.
// The frame, the callback and the message are acknowledged separately. Each must
// arrive once and in order.
type ledger struct {
	mu         sync.Mutex
	phase      *phase
	operations map[string]*operation // by ID: of the frame, the work item and the message
	sessions   map[string]*account
	problems   []string
	notes      map[string]int // events that explain a result, and how often they occurred
	completed  int
}

// phase is the time in which one fault is injected.
type phase struct {
	fault      string
	operations []*operation
	accounts   map[string]notified // by session
}

// notified records which sides of a session were notified of a loss.
type notified struct{ browser, runtime bool }

// of returns whether the side that receives messages, or else frames and callbacks, was notified.
func (n notified) of(messages bool) bool {
	if messages {
		return n.browser
	}
	return n.runtime
}

// account is the state of a session.
type account struct {
	next   int       // number of the next operation
	newest time.Time // start of the newest completed operation
}

// operation is one round trip.
type operation struct {
	id, session              string
	number                   int // per session
	started, completedAt     time.Time
	done                     chan struct{} // closed when the browser has the message
	frame, callback, message delivery
	awaited, timedOut        bool // the work item
}

func (o *operation) String() string {
	return fmt.Sprintf("operation %d of %s, started %s: frame %+v, awaited %v, timed out %v, callback %+v, message %+v",
		o.number, o.session, o.started.Format("15:04:05.000"), o.frame, o.awaited, o.timedOut, o.callback, o.message)
}

// completed reports whether the browser has the message.
func (o *operation) completed() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// delivery is a frame, a callback or a message.
type delivery struct {
	acknowledged bool
	places       []string // positions in the runtime stream, or cursors of the browser
	arrived      int      // order of arrival, for messages
	times        int      // how often a message was received
}

func (d *delivery) arrive(place string) {
	if !slices.Contains(d.places, place) {
		d.places = append(d.places, place)
	}
}

func (d *delivery) isLost() bool { return d.acknowledged && len(d.places) == 0 }

func newLedger() *ledger {
	l := &ledger{operations: map[string]*operation{}, sessions: map[string]*account{}, notes: map[string]int{}}
	l.begin("")
	return l
}

// begin starts a phase.
func (l *ledger) begin(fault string) *phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.phase = &phase{fault: fault, accounts: map[string]notified{}}
	return l.phase
}

// open records a new operation of a session.
func (l *ledger) open(session string) *operation {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(session)
	o := &operation{id: uuid.NewString(), session: session, number: a.next, started: time.Now(), done: make(chan struct{})}
	a.next++
	l.operations[o.id] = o
	l.phase.operations = append(l.phase.operations, o)
	return o
}

// account returns the account of a session. The caller holds mu.
func (l *ledger) account(session string) *account {
	a := l.sessions[session]
	if a == nil {
		a = &account{}
		l.sessions[session] = a
	}
	return a
}

// update runs f on an operation. Unknown IDs are reported as a problem.
func (l *ledger) update(id string, f func(*operation)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.operations[id]; o != nil {
		f(o)
	} else {
		l.problems = append(l.problems, "unknown operation "+id)
	}
}

// receive records the message that completes an operation.
func (l *ledger) receive(id, cursor string) {
	l.update(id, func(o *operation) {
		if len(o.message.places) == 0 {
			l.completed++
			o.completedAt = time.Now()
			o.message.arrived = l.completed
			if a := l.sessions[o.session]; o.started.After(a.newest) {
				a.newest = o.started
			}
			close(o.done)
		}
		o.message.arrive(cursor)
		o.message.times++
	})
}

// incomplete returns the browsers without a completed operation since a time of theirs.
func (l *ledger) incomplete(browsers []*browser, since map[*browser]time.Time) []*browser {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(browsers, func(b *browser) bool { return !l.sessions[b.Session].newest.Before(since[b]) })
}

// lossReported records that one side of a session was notified of a loss.
func (l *ledger) lossReported(session string, toRuntime bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.phase.accounts[session]
	if toRuntime {
		n.runtime = true
	} else {
		n.browser = true
	}
	l.phase.accounts[session] = n
}

// problem records something that must not happen at all.
func (l *ledger) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems = append(l.problems, l.phase.fault+": "+fmt.Sprintf(format, args...))
}

// note records an event that is allowed under a fault and explains its result.
func (l *ledger) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notes[fmt.Sprintf(format, args...)]++
}

func (l *ledger) takeNotes() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.notes = map[string]int{} }()
	return l.notes
}

// size returns the number of operations of a phase.
func (l *ledger) size(p *phase) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(p.operations)
}

// describe returns the incomplete operations of a session.
func (l *ledger) describe(session string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var open []*operation
	for _, o := range l.operations {
		if o.session == session && !o.completed() {
			open = append(open, o)
		}
	}
	slices.SortFunc(open, func(a, b *operation) int { return cmp.Compare(a.number, b.number) })
	var b strings.Builder
	for _, o := range open {
		fmt.Fprintln(&b, o)
	}
	return b.String()
}

func (l *ledger) takeProblems() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.problems = nil }()
	return l.problems
}

// row is the result of a phase.
type row struct {
	Fault                       string
	Frames, Callbacks, Messages int // acknowledged
	Lost                        int
	Twice, Disordered           int // without notice of a loss before
	Silent                      int // lost without notice to the sides concerned
	FirstLost, FirstSilent      string
	Notified                    int  // sessions with a notified side
	MayLose                     bool // the settings do not promise that data survives
	Recovery                    time.Duration
}

// count compares what was acknowledged in a phase with what arrived. All
// operations of the phase must be completed or lost.
func (l *ledger) count(p *phase) row {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := row{Fault: p.fault, Notified: len(p.accounts)}
	kinds := []struct {
		total *int
		of    func(*operation) *delivery
	}{
		{&r.Frames, func(o *operation) *delivery { return &o.frame }},
		{&r.Callbacks, func(o *operation) *delivery { return &o.callback }},
		{&r.Messages, func(o *operation) *delivery { return &o.message }},
	}
	bySession := map[string][]*operation{}
	for _, o := range p.operations {
		bySession[o.session] = append(bySession[o.session], o)
		n := p.accounts[o.session]
		for _, kind := range kinds {
			d := kind.of(o)
			if d.acknowledged {
				*kind.total++
			}
			if (len(d.places) > 1 || d.times > 1) && !n.of(d == &o.message) {
				r.Twice++
			}
		}
		if o.frame.isLost() {
			r.lose("frame", o, n)
		}
		if o.message.isLost() {
			r.lose("message", o, n)
		}
		if o.callback.isLost() || o.awaited && len(o.callback.places) == 0 {
			n.runtime = n.runtime || o.timedOut
			n.browser = true // not concerned
			r.lose("callback", o, n)
		}
	}
	for session, list := range bySession {
		for _, kind := range kinds {
			if !p.accounts[session].of(kind.of(list[0]) == &list[0].message) {
				r.Disordered += disordered(list, kind.of)
			}
		}
	}
	return r
}

// lose counts a loss. It keeps the first one and the first silent one for diagnosis.
func (r *row) lose(kind string, o *operation, n notified) {
	description := fmt.Sprintf("%s, notified %+v: %s", kind, n, o)
	r.Lost++
	r.FirstLost = cmp.Or(r.FirstLost, description)
	if n.browser && n.runtime {
		return
	}
	r.Silent++
	r.FirstSilent = cmp.Or(r.FirstSilent, description)
}

// disordered returns the number of deliveries of one session that arrived after a
// later one. operations are in the order in which they were sent.
func disordered(operations []*operation, of func(*operation) *delivery) (n int) {
	var arrived []*operation
	for _, o := range operations {
		if len(of(o).places) > 0 {
			arrived = append(arrived, o)
		}
	}
	slices.SortStableFunc(arrived, func(a, b *operation) int {
		x, y := of(a), of(b)
		if x.arrived > 0 {
			return cmp.Compare(x.arrived, y.arrived)
		}
		return comparePositions(x.places[0], y.places[0])
	})
	newest := -1
	for _, o := range arrived {
		if o.number < newest {
			n++
		}
		newest = max(newest, o.number)
	}
	return n
}

// comparePositions compares positions of the form NUMBER-MS. A new epoch starts
// with number 1, but its time is later.
func comparePositions(a, b string) int {
	parse := func(position string) (number, ms int) {
		n, m, _ := strings.Cut(position, "-")
		number, _ = strconv.Atoi(n)
		ms, _ = strconv.Atoi(m)
		return number, ms
	}
	na, ma := parse(a)
	nb, mb := parse(b)
	return cmp.Or(cmp.Compare(ma, mb), cmp.Compare(na, nb))
}
