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
// tries again for as long as ctx lasts, with growing, jittered pauses, and logs
// when the reason changes, not every try. The end of ctx is its only error.
func (s *Store) Connect(ctx context.Context) error {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval = 200 * time.Millisecond
	pauses.MaxInterval = 5 * time.Second

	attempt := func() (struct{}, error) {
		err := s.Ping(ctx)
		if err == nil {
			err = s.Migrate(ctx)
		}
		return struct{}{}, err
	}
	var known string
	report := func(err error, _ time.Duration) {
		why := reason(err)
		if kind := numbers.ReplaceAllString(why, ""); kind != known {
			known = kind
			s.log.WarnContext(ctx, "database not ready, trying again until it is", "database", s.engine.title, "reason", why)
		}
	}
	began := time.Now()
	_, err := backoff.Retry(ctx, attempt,
		backoff.WithBackOff(pauses), backoff.WithNotify(report), backoff.WithMaxElapsedTime(0))
	if err != nil {
		return err
	}
	s.log.InfoContext(ctx, "database ready", "database", s.engine.title, "waited", time.Since(began).Round(time.Millisecond))
	return nil
}

// numbers are what changes between two failures for the same reason: source
// ports, times.
var numbers = regexp.MustCompile(`\d+`)

// reason says in one line why the database cannot be used.
func reason(err error) string {
	var away *fault.Error
	var server *pgconn.PgError
	var network *net.OpError
	if errors.As(err, &away) && away.Cause != nil {
		err = away.Cause
	}
	switch {
	case errors.As(err, &server):
		return server.Message
	case errors.As(err, &network):
		return network.Err.Error()
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer in time"
	}
	return strings.Join(strings.Fields(err.Error()), " ")
}
