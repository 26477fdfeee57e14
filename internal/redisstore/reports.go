package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"telapi/internal/kv"
	"telapi/internal/speech"
)

const (
	// All instances share one consumer, so that no names of former instances
	// accumulate. Reports of a crashed instance are delivered again by their age.
	reportsGroup, reportsConsumer = "accounts", "telapi"

	maxRejected      = 10_000 // reports kept for diagnosis
	maxRejectedBytes = 4 << 10
)

var _ speech.ReportStream = (*ReportStream)(nil)

// ReportStream is the stream of usage reports.
type ReportStream struct {
	store          *Store
	redeliverAfter time.Duration // age of an unacknowledged report
}

// NewReportStream returns the stream of a store.
func NewReportStream(s *Store) *ReportStream { return &ReportStream{s, 5 * time.Second} }

// Append implements speech.ReportStream.
func (r *ReportStream) Append(ctx context.Context, reports ...[]byte) error {
	err := r.do(ctx, "append usage reports", func(c rueidis.Client) (commands rueidis.Commands) {
		for _, report := range reports {
			commands = append(commands, c.B().Xadd().Key(kv.ReportsStream).Id("*").FieldValue().
				FieldValue("report", rueidis.BinaryString(report)).Build().ToRetryable())
		}
		return commands
	})
	if err != nil {
		return err
	}
	return r.store.do(ctx, "replicate usage reports", func(ctx context.Context, c rueidis.Client) error {
		return kv.WaitForReplicas(ctx, c, r.store.opts.MinReplicas, kv.ReplicatedReportsKey)
	})
}

// do runs commands that can be repeated.
func (r *ReportStream) do(ctx context.Context, operation string, build func(rueidis.Client) rueidis.Commands) error {
	return r.store.do(ctx, operation, func(ctx context.Context, c rueidis.Client) error {
		for _, reply := range c.DoMulti(ctx, build(c)...) {
			if err := reply.Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Read implements speech.ReportStream. It creates the group if it does not exist; that
// call returns nothing.
func (r *ReportStream) Read(caller context.Context, limit int, wait time.Duration) (list []speech.ReportEntry, err error) {
	err = r.store.do(caller, "read usage reports", func(_ context.Context, c rueidis.Client) error {
		// A blocking read has its own connection. So it may exceed commandTimeout, and ends with its caller.
		ctx, cancel := context.WithTimeout(caller, wait+commandTimeout)
		defer cancel()
		entries, err := r.abandoned(ctx, c, limit)
		if err == nil && len(entries) == 0 {
			entries, err = readNew(ctx, c, limit, wait)
		}
		if kv.ErrorCode(err) == "NOGROUP" {
			err = c.Do(ctx, c.B().XgroupCreate().Key(kv.ReportsStream).Group(reportsGroup).Id("0").Mkstream().Build().ToRetryable()).Error()
			if kv.ErrorCode(err) == "BUSYGROUP" { // another instance was faster
				err = nil
			}
		}
		for _, e := range entries {
			list = append(list, speech.ReportEntry{ID: e.ID, Report: []byte(e.FieldValues["report"])})
		}
		return err
	})
	return list, err
}

// abandoned returns reports that a crashed instance has read.
func (r *ReportStream) abandoned(ctx context.Context, c rueidis.Client, limit int) ([]rueidis.XRangeEntry, error) {
	reply, err := c.Do(ctx, c.B().Xautoclaim().Key(kv.ReportsStream).Group(reportsGroup).Consumer(reportsConsumer).
		MinIdleTime(kv.Millis(r.redeliverAfter)).Start("0-0").Count(int64(limit)).Build().ToRetryable()).ToArray()
	if err != nil || len(reply) < 2 {
		return nil, err
	}
	return reply[1].AsXRange()
}

func readNew(ctx context.Context, c rueidis.Client, limit int, wait time.Duration) ([]rueidis.XRangeEntry, error) {
	read := c.B().Xreadgroup().Group(reportsGroup, reportsConsumer).Count(int64(limit))
	var command rueidis.Completed
	if wait > 0 {
		command = read.Block(wait.Milliseconds()).Streams().Key(kv.ReportsStream).Id(">").Build()
	} else {
		command = read.Streams().Key(kv.ReportsStream).Id(">").Build()
	}
	streams, err := c.Do(ctx, command).AsXRead()
	return streams[kv.ReportsStream], ignoreNil(err)
}

// Ack implements speech.ReportStream. It deletes reports before it acknowledges them: if
// the process dies in between, a deleted report is not delivered again, while an
// acknowledged one would stay on the stream forever.
func (r *ReportStream) Ack(ctx context.Context, counted []speech.ReportEntry) error {
	ids := make([]string, len(counted))
	for i, d := range counted {
		ids[i] = d.ID
	}
	return r.do(ctx, "acknowledge usage reports", func(c rueidis.Client) rueidis.Commands {
		return rueidis.Commands{
			c.B().Xdel().Key(kv.ReportsStream).Id(ids...).Build().ToRetryable(),
			c.B().Xack().Key(kv.ReportsStream).Group(reportsGroup).Id(ids...).Build().ToRetryable(),
		}
	})
}

// Reject implements speech.ReportStream.
func (r *ReportStream) Reject(ctx context.Context, bad speech.ReportEntry, reason string) error {
	err := r.do(ctx, "keep a rejected usage report", func(c rueidis.Client) rueidis.Commands {
		return rueidis.Commands{c.B().Xadd().Key(kv.RejectedReportsStream).Maxlen().Almost().Threshold(strconv.Itoa(maxRejected)).Id("*").FieldValue().
			FieldValue("report", string(bad.Report[:min(len(bad.Report), maxRejectedBytes)])).FieldValue("reason", reason).Build()}
	})
	if err != nil {
		return err
	}
	return r.Ack(ctx, []speech.ReportEntry{bad})
}

// Len implements speech.ReportStream.
func (r *ReportStream) Len(ctx context.Context) (int64, error) {
	return query(ctx, r.store, "count usage reports", func(ctx context.Context, c rueidis.Client) (int64, error) {
		return c.Do(ctx, c.B().Xlen().Key(kv.ReportsStream).Build()).AsInt64()
	})
}
