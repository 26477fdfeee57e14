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

// DeleteOld deletes entries that are older than retention, now and every hour until ctx
// ends. One instance at a time does so. If retention is 0, it deletes none.
func DeleteOld(ctx context.Context, store Store, leases Leases, retention time.Duration, log *slog.Logger) {
	for retention > 0 && ctx.Err() == nil {
		err := deletePages(ctx, store, leases, retention)
		isOutage := fault.Is(err, fault.ServiceUnavailable) // which the store logs
		if err != nil && !isOutage && ctx.Err() == nil {
			log.WarnContext(ctx, "deleting old audit entries failed", "error", err)
		}
		_ = background.Sleep(ctx, cleanInterval)
	}
}

func deletePages(ctx context.Context, store Store, leases Leases, retention time.Duration) error {
	ctx, release, held, err := leases.Try(ctx, cleanLease)
	if err != nil || !held {
		return err
	}
	defer release()
	for {
		deleted, err := store.DeleteAuditEntries(ctx, time.Now().Add(-retention), cleanPage)
		if err != nil || deleted < cleanPage {
			return err
		}
	}
}
