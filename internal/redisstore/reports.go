package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/redisconn"
	"telapi/internal/usage"
)

const (
	// All instances read as one consumer. What one of them leaves behind is
	// found by its age, and no names of the dead pile up.
	reportsGroup, reportsConsumer = "accounts", "telapi"

	maxRefused      = 10_000 // newest ones that are put aside
	maxRefusedBytes = 4 << 10
)

var _ usage.Stream = (*Reports)(nil)

// Reports is the stream of speech that is to be counted.
type Reports struct {
	store       *Store
	takeUpAfter time.Duration // what was read and not settled for so long
}

// NewReports returns the stream in a store.
func NewReports(s *Store) *Reports { return &Reports{s, 5 * time.Second} }

// Append implements usage.Stream.
func (r *Reports) Append(ctx context.Context, reports ...[]byte) error {
	return r.do(ctx, "report speech", func(c rueidis.Client) (commands rueidis.Commands) {
		for _, report := range reports {
			commands = append(commands, c.B().Xadd().Key(kv.ReportsStream).Id("*").FieldValue().
				FieldValue("report", rueidis.BinaryString(report)).Build().ToRetryable())
		}
		return commands
	})
}

// do runs commands of which each may be run twice.
func (r *Reports) do(ctx context.Context, doing string, build func(rueidis.Client) rueidis.Commands) error {
	return r.store.do(ctx, doing, func(ctx context.Context, c rueidis.Client) error {
		for _, reply := range c.DoMulti(ctx, build(c)...) {
			if err := reply.Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Read implements usage.Stream.
func (r *Reports) Read(caller context.Context, limit int, wait time.Duration) (taken []usage.ReportEntry, err error) {
	err = r.store.do(caller, "read speech reports", func(_ context.Context, c rueidis.Client) error {
		// A blocking read uses its own connection and ends with its caller.
		ctx, cancel := context.WithTimeout(caller, wait+commandTimeout)
		defer cancel()
		group := redisconn.Group{Stream: kv.ReportsStream, Name: reportsGroup, Consumer: reportsConsumer, MinIdle: r.takeUpAfter}
		entries, err := group.Read(ctx, c, limit, wait)
		for _, e := range entries {
			taken = append(taken, usage.ReportEntry{ID: e.ID, Report: []byte(e.FieldValues["report"])})
		}
		return err
	})
	return taken, err
}

// Ack implements usage.Stream. What is deleted first and then not
// acknowledged, because the process dies, is never delivered again; the other way
// round it would lie there for good.
func (r *Reports) Ack(ctx context.Context, counted []usage.ReportEntry) error {
	ids := make([]string, len(counted))
	for i, d := range counted {
		ids[i] = d.ID
	}
	return r.do(ctx, "settle reports of speech", func(c rueidis.Client) rueidis.Commands {
		return rueidis.Commands{
			c.B().Xdel().Key(kv.ReportsStream).Id(ids...).Build().ToRetryable(),
			c.B().Xack().Key(kv.ReportsStream).Group(reportsGroup).Id(ids...).Build().ToRetryable(),
		}
	})
}

// Reject implements usage.Stream.
func (r *Reports) Reject(ctx context.Context, bad usage.ReportEntry, reason string) error {
	err := r.do(ctx, "put a report of speech aside", func(c rueidis.Client) rueidis.Commands {
		return rueidis.Commands{c.B().Xadd().Key(kv.RejectedReportsStream).Maxlen().Almost().Threshold(strconv.Itoa(maxRefused)).Id("*").FieldValue().
			FieldValue("report", string(bad.Report[:min(len(bad.Report), maxRefusedBytes)])).FieldValue("reason", reason).Build()}
	})
	if err != nil {
		return err
	}
	return r.Ack(ctx, []usage.ReportEntry{bad})
}

// Len implements usage.Stream.
func (r *Reports) Len(ctx context.Context) (n int64, err error) {
	err = r.store.do(ctx, "count reports of speech", func(ctx context.Context, c rueidis.Client) (err error) {
		n, err = c.Do(ctx, c.B().Xlen().Key(kv.ReportsStream).Build()).AsInt64()
		return err
	})
	return n, err
}
