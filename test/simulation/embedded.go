package simulation

import (
	"sync"
	"time"
)

// snapshotInterval is how often the embedded store is saved.
const snapshotInterval = 2 * time.Second

// disk is where the embedded store is saved. While it is full, nothing is.
type disk struct {
	mu   sync.Mutex
	full []period
}

// fill makes the disk full for a while.
func (d *disk) fill(length time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = append(d.full, period{time.Now(), time.Now().Add(length)})
}

// free deletes files, because a process does not start on a full disk.
func (d *disk) free() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.full {
		if d.full[i].to.After(time.Now()) {
			d.full[i].to = time.Now()
		}
	}
}

func (d *disk) isFull(at time.Time) bool {
	for _, p := range d.full {
		if !at.Before(p.from) && at.Before(p.to) {
			return true
		}
	}
	return false
}

// lastSnapshot returns when the store of a process was saved last. One that stops
// gracefully saves it at the end.
func (d *disk) lastSnapshot(started time.Time, graceful bool) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if graceful && !d.isFull(time.Now()) {
		return time.Now()
	}
	at := started.Add(time.Since(started).Truncate(snapshotInterval))
	for at.After(started) && d.isFull(at) {
		at = at.Add(-snapshotInterval)
	}
	return at
}

// restartStore starts the embedded store again after the end of its process, with its last
// snapshot. Nobody can report what it had after it: the process was the only one.
func (p *serviceProcess) restartStore(graceful bool) {
	w := p.instance.world
	saved := w.disk.lastSnapshot(p.started, graceful)
	if !saved.Equal(time.Now()) {
		w.ledger.crashed(p.host)
	}
	w.failOver(0, saved, 0, false)
	w.trace(p.instance.name, "saved its store %v ago", time.Since(saved))
}

// failOver replaces a node of the store by its replica, or by its snapshot.
func (w *world) failOver(node int, after time.Time, outage time.Duration, subscriptionsSurvive bool) {
	lost := w.store.failover(node, after, outage, subscriptionsSurvive)
	w.trace("scheduler", "fails node %d over: %d writes since %v ago are lost, back in %v, subscriptions survive: %v", node, len(lost), time.Since(after), outage, subscriptionsSurvive)
	w.ledger.failedOver(lost)
	w.audit.reset()
}
