package audit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/sleep"
	"telapi/internal/writebehind"
)

const (
	refusalWindow = time.Minute // of the requests that share an entry
	maxAttempts   = 5           // different requests that an entry lists
	maxRefused    = 1000        // actors in a window; further ones share an entry
)

// Attempt is a request that was refused.
type Attempt struct {
	Request string     `json:"request"` // method and path
	Code    fault.Code `json:"code"`
}

// refused are the details of an entry for refused requests.
type refused struct {
	Requests int       `json:"requests"`
	Attempts []Attempt `json:"attempts"` // some of them

	teamID string
	at     time.Time // of the first
}

// Refusals records administrative requests that were refused. However many there are,
// an actor has one entry a minute, so that they cannot fill the database.
type Refusals struct {
	store Store
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	byActor map[Actor]*refused
}

// NewRefusals returns an empty Refusals. The caller must start Run, which writes.
func NewRefusals(store Store, log *slog.Logger, now func() time.Time) *Refusals {
	return &Refusals{store: store, log: log, now: now, byActor: map[Actor]*refused{}}
}

// Record records a refused request of an actor of a team. It does not block.
func (r *Refusals) Record(actor Actor, teamID string, a Attempt) {
	a.Request = cut(redact.Text(a.Request))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byActor[actor] == nil && len(r.byActor) >= maxRefused {
		actor, teamID = systemActor, ""
	}
	entry := r.byActor[actor]
	if entry == nil {
		entry = &refused{teamID: teamID, at: r.now()}
		r.byActor[actor] = entry
	}
	entry.Requests++
	if len(entry.Attempts) < maxAttempts && !slices.Contains(entry.Attempts, a) {
		entry.Attempts = append(entry.Attempts, a)
	}
}

// Run writes entries every minute until ctx ends, and a last time before it returns.
func (r *Refusals) Run(ctx context.Context) {
	for sleep.For(ctx, refusalWindow) == nil {
		r.flush(ctx)
	}
	r.flush(context.WithoutCancel(ctx))
}

func (r *Refusals) flush(ctx context.Context) {
	r.mu.Lock()
	byActor := r.byActor
	r.byActor = map[Actor]*refused{}
	r.mu.Unlock()
	var entries []Entry
	for actor, d := range byActor {
		target := "team:" + d.teamID
		if d.teamID == "" {
			target = "teams"
		}
		if entry, err := newEntry(actor, d.at, RefuseRequest, target, d.teamID, d); err == nil {
			entries = append(entries, entry)
		}
	}
	if len(entries) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writebehind.ShutdownTimeout)
	defer cancel()
	if err := r.store.AddAuditEntries(ctx, entries...); err != nil {
		r.log.WarnContext(ctx, "recording refused administrative requests failed", "actors", len(entries), "error", err)
	}
}
