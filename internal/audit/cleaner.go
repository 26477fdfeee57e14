package audit

import (
	"context"
	"log/slog"
	"time"

	"telapi/internal/background"
	"telapi/internal/fault"
)

const (
	cleanInterval = time.Hour
	cleanPage     = 500
	cleanLease    = "audit-cleanup" // held during a cleanup
)

// Leases are locks that all instances share.
type Leases interface {
	// Try takes the lease if it is free. The returned context ends when the lease is
	// released or may have been lost.
	Try(ctx context.Context, name string) (leaseCtx context.Context, release func(), held bool, err error)
}

// Cleaner deletes old entries.
type Cleaner struct {
	store     Store
	leases    Leases
	retention time.Duration
	log       *slog.Logger
	now       func() time.Time
}

// NewCleaner returns a cleaner that deletes entries that are older than retention. If
// retention is 0, it deletes none.
func NewCleaner(store Store, leases Leases, retention time.Duration, log *slog.Logger, now func() time.Time) *Cleaner {
	return &Cleaner{store, leases, retention, log, now}
}

// Run cleans up every hour until ctx ends. One instance at a time does so.
func (c *Cleaner) Run(ctx context.Context) {
	if c.retention == 0 {
		return
	}
	for ctx.Err() == nil {
		if err := c.clean(ctx); err != nil && ctx.Err() == nil && !fault.Is(err, fault.ServiceUnavailable) { // stores log their own outages
			c.log.WarnContext(ctx, "deleting old audit entries failed", "error", err)
		}
		_ = background.Sleep(ctx, cleanInterval)
	}
}

func (c *Cleaner) clean(ctx context.Context) error {
	ctx, release, held, err := c.leases.Try(ctx, cleanLease)
	if err != nil || !held {
		return err
	}
	defer release()
	for {
		deleted, err := c.store.DeleteAuditEntries(ctx, c.now().Add(-c.retention), cleanPage)
		if err != nil || deleted < cleanPage {
			return err
		}
	}
}
