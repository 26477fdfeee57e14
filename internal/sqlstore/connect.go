package sqlstore

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"telapi/internal/fault"
)

// Connect waits until the database answers and its schema is up to date. It
// retries with exponential backoff until ctx ends and logs each new reason for
// a failure once. It returns an error only if ctx ends.
func (s *Store) Connect(ctx context.Context) error {
	start := time.Now()
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 200*time.Millisecond, 5*time.Second
	var lastReason string
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := s.Ping(ctx)
		if err == nil {
			err = s.Migrate(ctx)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(pauses), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, _ time.Duration) {
		reason := failureReason(err)
		if withoutNumbers := numbers.ReplaceAllString(reason, ""); withoutNumbers != lastReason {
			lastReason = withoutNumbers
			s.log.WarnContext(ctx, "database not ready, retrying", "database", s.engine.title, "reason", reason)
		}
	}))
	if err != nil {
		return err
	}
	s.log.InfoContext(ctx, "database ready", "database", s.engine.title, "waited", time.Since(start).Round(time.Millisecond))
	return nil
}

// numbers matches the ports and times that differ between failures with the
// same reason.
var numbers = regexp.MustCompile(`\d+`)

// failureReason describes in one line why the database is not usable.
func failureReason(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Cause != nil {
		err = e.Cause
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Message
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Err.Error()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "timed out"
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
