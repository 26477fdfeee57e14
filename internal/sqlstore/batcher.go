package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// batchWorkers is the number of batches that run at a time. More batches would be
	// smaller; a single one would wait for the database most of the time.
	batchWorkers = 2
	maxBatch     = 64
	// limitLockWait makes a batch fail if a row or a table is locked for 200 ms, so that
	// one lock does not block the statements that do not need it.
	limitLockWait = "SELECT set_config('lock_timeout', '200', TRUE)"
	// resultWait is how long a canceled write waits for its result. It is longer than a
	// batch takes unless the database does not respond.
	resultWait = time.Second
)

// errRunAlone is returned for a statement that has had no effect and that the caller
// runs on its own.
var errRunAlone = errors.New("not run in a batch")

// batcher runs the statements of concurrent callers together on PostgreSQL. A batch is
// one round trip and one transaction, so that PostgreSQL needs less than half of the CPU
// time per statement. A statement waits only while all workers are busy. Its caller gets
// the result after the commit.
type batcher struct {
	db      *sql.DB
	calls   chan *batchCall
	ctx     context.Context // canceled by close
	cancel  context.CancelFunc
	workers sync.WaitGroup
}

// batchCall is one statement. Its results are valid when done is closed.
type batchCall struct {
	ctx     context.Context // the statement is not sent after its end
	query   string
	args    []any
	into    []any // fields of the only row; nil if the statement returns none
	changed int64
	err     error
	done    chan struct{}
}

func newBatcher(db *sql.DB) *batcher {
	b := &batcher{db: db, calls: make(chan *batchCall)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	for range batchWorkers {
		b.workers.Go(b.work)
	}
	return b
}

// close cancels the batches in progress. Later statements return errRunAlone.
func (b *batcher) close() {
	if b != nil {
		b.cancel()
		b.workers.Wait()
	}
}

// run runs a statement. A nil batcher returns errRunAlone. If ctx ends while a worker has
// the statement, a read fails at once. A write waits up to resultWait for its result: it
// could have an effect after its failure was reported.
func (b *batcher) run(ctx context.Context, query string, args, into []any) (changed int64, err error) {
	if b == nil {
		return 0, errRunAlone
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	call := &batchCall{ctx: ctx, query: query, args: args, into: into, done: make(chan struct{})}
	select {
	case b.calls <- call:
	case <-b.ctx.Done():
		return 0, errRunAlone
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	select {
	case <-call.done:
		return call.changed, call.err
	case <-ctx.Done():
	}
	if into == nil {
		select {
		case <-call.done:
			return call.changed, call.err
		case <-time.After(resultWait):
		}
	}
	return 0, ctx.Err()
}

func (b *batcher) work() {
	for {
		select {
		case first := <-b.calls:
			b.send(b.collect(first))
		case <-b.ctx.Done():
			return
		}
	}
}

// collect returns a call and those that wait behind it.
func (b *batcher) collect(first *batchCall) []*batchCall {
	batch := []*batchCall{first}
	for len(batch) < maxBatch {
		select {
		case next := <-b.calls:
			batch = append(batch, next)
		default:
			return batch
		}
	}
	return batch
}

// send runs a batch. If the database rejects one of the statements, none has an effect.
func (b *batcher) send(calls []*batchCall) {
	ctx, cancel := context.WithTimeout(b.ctx, statementTimeout)
	defer cancel()
	// All batches lock rows in the order of their IDs, which are the first arguments, so
	// that they cannot deadlock.
	slices.SortStableFunc(calls, func(a, b *batchCall) int { return cmp.Compare(a.id(), b.id()) })
	err := sendBatch(ctx, b.db, func(batch *pgx.Batch) {
		batch.Queue(limitLockWait)
		for _, c := range calls {
			c.queue(batch)
		}
	})
	switch {
	case err == nil:
	case b.ctx.Err() != nil: // the outcome is unknown
		err = sql.ErrConnDone
	case hadNoEffect(err):
		err = errRunAlone
	}
	for _, c := range calls {
		c.err = cmp.Or(err, c.err)
		close(c.done)
	}
}

// hadNoEffect reports whether a batch that failed has certainly changed nothing. An error
// of class 08 may come from a connection pooler that lost the server after the commit.
func hadNoEffect(err error) bool {
	if state := sqlState(err); state != "" {
		return !strings.HasPrefix(state, "08")
	}
	return !isUnavailable(err) || pgconn.SafeToRetry(err)
}

func (c *batchCall) id() string {
	id, _ := c.args[0].(string)
	return id
}

// queue adds the statement to a batch that is sent at once, unless it was canceled while
// it waited for a connection.
func (c *batchCall) queue(batch *pgx.Batch) {
	if c.err = c.ctx.Err(); c.err != nil {
		return
	}
	if queued := batch.Queue(c.query, c.args...); c.into != nil {
		queued.QueryRow(c.readRow)
	} else {
		queued.Exec(c.readChanged)
	}
}

func (c *batchCall) readRow(row pgx.Row) error {
	if err := row.Scan(c.into...); !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	c.err = sql.ErrNoRows
	return nil
}

func (c *batchCall) readChanged(result pgconn.CommandTag) error {
	c.changed = result.RowsAffected()
	return nil
}
