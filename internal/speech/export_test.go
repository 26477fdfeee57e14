package speech

import "context"

// Internals that tests use.
const (
	BlobRetryDelay   = blobRetryDelay
	CleanupLease     = cleanupLease
	ExpireInterval   = expireInterval
	FailureCooldown  = failureCooldown
	FailureMemory    = failureMemory
	OrphanAge        = orphanAge
	SynthesisTimeout = synthesisTimeout
	TouchInterval    = touchInterval
)

var (
	ErrCleanupRunning = errCleanupRunning
	ErrDamaged        = errDamaged
)

// Save stores audio of a provider and reports whether it is cached.
func (s *Service) Save(ctx context.Context, p Provider, audio []byte) (stored bool) {
	r := result{recording: s.recording(request{Encoding: PCM, SampleRate: 8000}, p), audio: audio}
	s.save(ctx, &r, PCM)
	return r.stored
}

// CleanPeriodically runs without the lease of Run.
func (c *Cleaner) CleanPeriodically(ctx context.Context) { c.cleanPeriodically(ctx) }

// Penalties returns the number of penalties that are kept.
func (s *Service) Penalties() int { return len(s.penalties.byTarget) }
