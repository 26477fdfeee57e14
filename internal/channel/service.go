package channel

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

// Limits bound a session's channel and its connection. Browsers receive them
// with their token.
type Limits struct {
	FrameBytes      int64         `json:"frameBytes"`
	QueuedBytes     int64         `json:"queuedBytes"`
	FramesPerSecond int           `json:"framesPerSecond"` // audio excluded
	HistoryMessages int           `json:"historyMessages"`
	HistorySeconds  int           `json:"historySeconds"`
	PingIntervalMs  int64         `json:"pingIntervalMs"`
	ReconnectJitter time.Duration `json:"-"`
}

// DefaultLimits returns the limits of a deployment that configures none.
func DefaultLimits() Limits {
	kept := wire.DefaultChannelLimits()
	return Limits{
		FrameBytes:      64 << 10,
		QueuedBytes:     1 << 20,
		FramesPerSecond: 60,
		HistoryMessages: int(kept.HistoryMessages),
		HistorySeconds:  int(kept.HistoryMs / 1000),
		PingIntervalMs:  25_000,
	}
}

// PingInterval returns PingIntervalMs as a duration.
func (l Limits) PingInterval() time.Duration {
	return time.Duration(l.PingIntervalMs) * time.Millisecond
}

// SessionInfo is the session a connection belongs to.
type SessionInfo struct {
	ID, TeamID, EndpointID, Mode string
	Reject                       bool // duplicatePolicy
	ExpiresAt                    time.Time
	Profile                      []byte // gatewayProfile as JSON
	Offer                        wire.Offer
}

// Sessions is the lasting side of sessions. Keep and Touch never block.
type Sessions interface {
	// AddAction persists what a browser did.
	AddAction(sessionID, messageID string, at time.Time, browserAction []byte)
	// Touch notes that a browser is, or was until now, connected.
	Touch(sessionID string)
	// End notes that a session's channel was found to have ended.
	End(ctx context.Context, sessionID string) error
	// Redeem notes that a session's browser was let in. Where the session has
	// ended it fails, and ends the channel.
	Redeem(ctx context.Context, sessionID string) error
}

// Service opens connections.
type Service struct {
	store   Store
	hub     Hub
	records Sessions
	limits  Limits
	log     *slog.Logger
	now     func() time.Time
	metrics metrics
}

// NewService returns a service on the given store.
func NewService(store Store, hub Hub, records Sessions, limits Limits, log *slog.Logger, registry prometheus.Registerer) *Service {
	return &Service{store: store, hub: hub, records: records, limits: limits, log: log, now: time.Now, metrics: newMetrics(registry)}
}

// Limits are what connections are held to.
func (s *Service) Limits() Limits { return s.limits }

// Open takes a session's channel over for a new connection, as far as that can
// be done before there is a socket, so that a refusal is still an HTTP answer.
// The caller calls Start, or Close when there will be no socket.
func (s *Service) Open(ctx context.Context, session SessionInfo, succeeds string, resume string) (*Connection, error) {
	c := newConnection(s, session, uuid.NewString())
	// Listening comes first: what is sent between the history's end and the
	// first live message would be lost otherwise.
	stop, err := s.hub.Subscribe(ctx, session.ID, c)
	if err != nil {
		return nil, err
	}
	c.stopListening = stop
	attachment := AttachRequest{
		ChannelID: session.ID, ConnectionID: c.id, Succeeds: succeeds, Reject: session.Reject, Lease: s.lease(),
		TeamID: session.TeamID, EndpointID: session.EndpointID, Mode: session.Mode, Profile: session.Profile,
		Entry: c.entry(wire.Entry{Kind: wire.KindSession, Event: "connected"}),
	}
	if resume != "" {
		cursor, _ := ParseCursor(resume) // garbage is a cursor of no epoch
		attachment.Resume = &cursor
	}
	if c.attached, err = s.store.Attach(ctx, attachment); err != nil {
		stop()
		if fault.Is(err, fault.SessionEnded) {
			s.ended(ctx, session.ID)
		}
		return nil, err
	}
	// Once there is a channel: who ends the session any earlier is seen here, who
	// does it later has something to end.
	if err := s.records.Redeem(ctx, session.ID); err != nil {
		c.Close()
		return nil, err
	}
	c.resuming = resume != ""
	c.start, c.position = c.attached.Head, c.attached.Head
	if n := len(c.attached.Missed); n > 0 {
		// A browser that is cut off again before it has seen all of that comes
		// back to where this began.
		c.start, c.position = Cursor{Epoch: c.attached.Head.Epoch}, c.attached.Missed[n-1].Cursor
		if resume != "" && resume != Start {
			c.start = *attachment.Resume
		}
	}
	if c.attached.Offer {
		c.offer(ctx)
	}
	return c, nil
}

// CheckOpen tells why Open would refuse a connection, if it would, and changes
// nothing.
func (s *Service) CheckOpen(ctx context.Context, session SessionInfo, succeeds string) error {
	_, err := s.store.Attach(ctx, AttachRequest{ChannelID: session.ID, Succeeds: succeeds, Reject: session.Reject, TeamID: session.TeamID, EndpointID: session.EndpointID})
	return err
}

// ended passes on that the runtime has ended a session.
func (s *Service) ended(ctx context.Context, sessionID string) {
	if err := s.records.End(ctx, sessionID); err != nil {
		s.log.WarnContext(ctx, "a session's end could not be noted yet", "session_id", sessionID, "error", err)
	}
}

// lease is how long ownership lasts unless it is renewed with every ping.
func (s *Service) lease() time.Duration { return 2 * s.limits.PingInterval() }

type metrics struct {
	frames     *prometheus.CounterVec
	refused    *prometheus.CounterVec
	replayed   prometheus.Counter
	recoveries *prometheus.CounterVec
	ackSeconds prometheus.Histogram
}

func newMetrics(registry prometheus.Registerer) metrics {
	auto := promauto.With(registry)
	m := metrics{
		frames: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_frames_total", Help: "Frames that passed a socket, by type and direction."}, []string{"type", "direction"}),
		refused: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_frames_refused_total", Help: "Frames of browsers that were answered with an error, by its code."}, []string{"code"}),
		replayed: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_messages_replayed_total", Help: "Messages replayed to browsers that came back or had missed them."}),
		recoveries: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_recoveries_total", Help: "Attempts to resume from a cursor, by outcome."}, []string{"outcome"}),
		ackSeconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "telapi_frame_ack_seconds", Help: "Time from a frame's arrival to its acknowledgement.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}}),
	}
	// From 0, so that an alert sees the first one as an increase.
	m.refused.WithLabelValues(string(codeBackpressure))
	for _, outcome := range []string{"recovered", "failed"} {
		m.recoveries.WithLabelValues(outcome)
	}
	return m
}
