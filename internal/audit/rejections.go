package audit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/internal/redact"
)

const (
	rejectionWindow = time.Minute // of the requests that share an entry
	maxAttempts     = 5           // different requests that an entry lists
	maxActors       = 1000        // in a window; further ones share the entry of systemActor
)

// Attempt is a request that was rejected.
type Attempt struct {
	Request string     `json:"request"` // method and path
	Code    fault.Code `json:"code"`
}

// rejected are the rejected requests of an actor in a window.
type rejected struct {
	teamID  string    // of the actor
	at      time.Time // of the first request
	details rejectedDetails
}

// rejectedDetails are the details of an entry for rejected requests.
type rejectedDetails struct {
	Requests int       `json:"requests"`
	Attempts []Attempt `json:"attempts"` // up to maxAttempts different ones
}

// Rejections records administrative requests that were rejected. An actor has at most one
// entry a minute, so that it cannot fill the database.
type Rejections struct {
	store Store
	log   *slog.Logger
	now   func() time.Time

	mu      sync.Mutex
	byActor map[Actor]*rejected
}

// NewRejections returns an empty Rejections. The caller must start Run, which writes.
func NewRejections(store Store, log *slog.Logger, now func() time.Time) *Rejections {
	return &Rejections{store: store, log: log, now: now, byActor: map[Actor]*rejected{}}
}

// Record records a rejected request of an actor of a team. It does not block.
func (r *Rejections) Record(actor Actor, teamID string, a Attempt) {
	a.Request = cut(redact.Text(a.Request))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byActor[actor] == nil && len(r.byActor) >= maxActors {
		actor, teamID = systemActor, ""
	}
	if r.byActor[actor] == nil {
		r.byActor[actor] = &rejected{teamID: teamID, at: r.now()}
	}
	d := &r.byActor[actor].details
	d.Requests++
	if len(d.Attempts) < maxAttempts && !slices.Contains(d.Attempts, a) {
		d.Attempts = append(d.Attempts, a)
	}
}

// Run writes entries every minute until ctx ends, and a last time before it returns.
func (r *Rejections) Run(ctx context.Context) {
	for background.Sleep(ctx, rejectionWindow) == nil {
		r.flush(ctx)
	}
	r.flush(context.WithoutCancel(ctx))
}

func (r *Rejections) flush(ctx context.Context) {
	r.mu.Lock()
	byActor := r.byActor
	r.byActor = map[Actor]*rejected{}
	r.mu.Unlock()
	var entries []Entry
	for actor, requests := range byActor {
		target := "team:" + requests.teamID
		if requests.teamID == "" {
			target = "teams"
		}
		entries = append(entries, newEntry(actor, requests.at, RejectRequest, target, requests.teamID, requests.details))
	}
	if len(entries) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, background.ShutdownTimeout)
	defer cancel()
	if err := r.store.AddAuditEntries(ctx, entries...); err != nil {
		r.log.WarnContext(ctx, "recording rejected administrative requests failed", "actors", len(entries), "error", err)
	}
}
