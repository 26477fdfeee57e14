package channel

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/internal/telemetry"
)

// ConnectionLimits bound a session's channel and its connection. Browsers receive them
// with their token.
type ConnectionLimits struct {
	FrameBytes      int64 `json:"frameBytes"`
	QueuedBytes     int64 `json:"queuedBytes"`
	FramesPerSecond int   `json:"framesPerSecond"` // audio excluded
	// AudioBytesPerSecond bounds the audio from a browser, as frames. Audio in
	// excess is dropped.
	AudioBytesPerSecond int           `json:"audioBytesPerSecond"`
	HistoryMessages     int           `json:"historyMessages"`
	HistorySeconds      int           `json:"historySeconds"`
	PingIntervalMs      int64         `json:"pingIntervalMs"`
	ReconnectJitter     time.Duration `json:"-"`
	HandshakesPerMinute int           `json:"-"` // of a session
}

// DefaultConnectionLimits returns the limits of a deployment that configures none.
func DefaultConnectionLimits() ConnectionLimits {
	history := wire.DefaultChannelLimits()
	return ConnectionLimits{
		FrameBytes:          64 << 10,
		QueuedBytes:         1 << 20,
		FramesPerSecond:     60,
		AudioBytesPerSecond: 64 << 10,
		HistoryMessages:     int(history.HistoryMessages),
		HistorySeconds:      int(history.HistoryMs / 1000),
		PingIntervalMs:      25_000,
		HandshakesPerMinute: 30,
	}
}

// PingInterval returns PingIntervalMs as a duration.
func (l ConnectionLimits) PingInterval() time.Duration {
	return time.Duration(l.PingIntervalMs) * time.Millisecond
}

// SessionInfo describes the session of a connection.
type SessionInfo struct {
	wire.Offer
	ExpiresAt       time.Time
	Profile         []byte // gatewayProfile as JSON
	RejectDuplicate bool   // duplicatePolicy is reject
	Redeemed        bool   // an earlier connection has redeemed the token
}

// Sessions records what happens to sessions in the database. AddAction and Touch
// do not block.
type Sessions interface {
	// AddAction records a browser action.
	AddAction(sessionID, messageID string, at time.Time, browserAction []byte)
	// Touch records that a browser was connected until now.
	Touch(sessionID string)
	// End records that the session's channel has ended.
	End(ctx context.Context, sessionID string) error
	// Redeem records that the session's browser connected. If the session has
	// ended, it fails and ends the channel.
	Redeem(ctx context.Context, sessionID string) error
}

// Service opens connections and owns their background work.
type Service struct {
	store    Store
	sessions Sessions
	limits   ConnectionLimits
	key      redact.Secret // from which credentials are derived
	log      *slog.Logger
	now      func() time.Time
	metrics  metrics
	tasks    *background.Group
	open     sync.Map // the open connections: *Connection
}

// NewService returns a service that uses the given stores until Close.
func NewService(store Store, sessions Sessions, limits ConnectionLimits, key redact.Secret, log *slog.Logger, registry prometheus.Registerer) *Service {
	return &Service{
		store: store, sessions: sessions, limits: limits, key: key, log: log, now: time.Now, metrics: newMetrics(registry), tasks: background.NewGroup(),
	}
}

// Close cancels background work and waits for it. Call it before closing the
// stores.
func (s *Service) Close() { s.tasks.Close() }

// run runs a task in the background, unless the service is closed. The context
// ends after storeTimeout or with the service.
func (s *Service) run(task func(ctx context.Context)) {
	_ = s.tasks.Go(context.Background(), func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		task(ctx)
	})
}

// Limits returns the limits of connections, which must not be changed.
func (s *Service) Limits() *ConnectionLimits { return &s.limits }

// Open attaches a new connection to a session, before there is a socket, so that
// errors can be HTTP responses. predecessor is the ID of the connection that the browser
// replaces, resume the last cursor that it has received; both may be empty. The
// caller calls Start once there is a socket, and Close at the end.
func (s *Service) Open(ctx context.Context, session SessionInfo, predecessor, resume string) (*Connection, error) {
	profile := session.Profile
	session.Profile = nil // only needed to open the channel; do not keep it for the connection's life
	c := &Connection{
		service: s, session: session, id: uuid.NewString(), openedAt: s.now(), resumes: resume != "",
		rate:   perSecond(s.limits.FramesPerSecond),
		tracer: telemetry.TracerOf(ctx), handshake: trace.SpanContextFromContext(ctx),
	}
	c.session.Offer.ExpiresAt, c.session.Offer.Trace = session.ExpiresAt.UnixMilli(), c.trace()
	c.reoffer.Store(true)
	// Subscribe first. Otherwise messages between the end of the history and
	// the first live message would be lost.
	var err error
	if c.unsubscribe, err = s.store.Subscribe(ctx, session.SessionID, c); err != nil {
		return nil, err
	}
	if session.Redeemed {
		// The session may have an open connection, which Attach replaces: fail
		// before if the database is unavailable. The channel exists already and
		// ends with the session.
		err = s.sessions.Redeem(ctx, session.SessionID)
	}
	if err == nil {
		err = c.attach(ctx, profile, predecessor, resume)
	}
	if err != nil {
		c.unsubscribe()
		return nil, err
	}
	if isNew := c.attached.Number == "1"; isNew || !session.Redeemed {
		// Redeem after the channel exists: a session that ended before is detected
		// here, and one that ends later ends the channel.
		if err := s.sessions.Redeem(ctx, session.SessionID); err != nil {
			c.Close()
			return nil, err
		}
	}
	if c.attached.Offer {
		c.offer(ctx, c.attached.Expired)
	}
	s.open.Store(c, nil)
	return c, nil
}

// attach makes the connection the owner of its session's channel. If it fails, it has no
// effect later.
func (c *Connection) attach(ctx context.Context, profile []byte, predecessor, resume string) error {
	r := attachRequest(c.session, predecessor)
	r.ConnectionID, r.Lease, r.Mode, r.Profile = c.id, c.service.lease(), c.session.Mode, profile
	r.Entry, r.Offer = c.entry(wire.Entry{Kind: wire.KindSession, Event: "connected"}), encode(c.session.Offer)
	if c.resumes {
		cursor, _ := parseCursor(resume) // an invalid cursor has no epoch and cannot be resumed
		r.Resume = &cursor
	}
	deadline := time.Now().Add(attachTimeout)
	attaching, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	a, err := c.service.store.Attach(attaching, r)
	switch {
	case fault.Is(err, fault.SessionEnded):
		c.service.recordEnd(ctx, c.session.SessionID)
	case fault.Is(err, fault.ServiceUnavailable) && !errors.Is(err, ErrNotSent):
		c.cancelAttach(deadline)
	}
	if err != nil {
		return err
	}
	c.attached, c.lastEntry = a, a.LastEntry
	c.start, c.cursor = a.Head, a.Head
	if n := len(a.Missed); n > 0 {
		// If the browser disconnects before it has received all missed
		// messages, it resumes from the same cursor again.
		c.start, c.cursor = Cursor{Epoch: a.Head.Epoch}, a.Missed[n-1].Cursor
		if c.resumes && resume != Start {
			c.start = *r.Resume
		}
	}
	return nil
}

// perSecond returns a limiter with a burst of one second.
func perSecond(limit int) *rate.Limiter { return rate.NewLimiter(rate.Limit(limit), limit) }

// CheckOpen returns the error that Open would return now, without changing
// anything.
func (s *Service) CheckOpen(ctx context.Context, session SessionInfo, predecessor string) error {
	return s.store.CheckAttach(ctx, attachRequest(session, predecessor))
}

func attachRequest(session SessionInfo, predecessor string) AttachRequest {
	return AttachRequest{
		ChannelID: session.SessionID, Predecessor: predecessor, RejectDuplicate: session.RejectDuplicate, TeamID: session.TeamID, EndpointID: session.EndpointID,
	}
}

func (s *Service) recordEnd(ctx context.Context, sessionID string) {
	if err := s.sessions.End(ctx, sessionID); err != nil {
		s.log.WarnContext(ctx, "end of session not recorded; the sweeper will retry", "session_id", sessionID, "error", err)
	}
}

// lease returns the duration of an ownership, which every ping renews.
func (s *Service) lease() time.Duration { return 2 * s.limits.PingInterval() }

type metrics struct {
	frames       *prometheus.CounterVec
	rejected     *prometheus.CounterVec
	audioDropped prometheus.Counter
	replayed     prometheus.Counter
	recoveries   *prometheus.CounterVec
	ackSeconds   prometheus.Histogram
	dropped      prometheus.Counter
	offers       prometheus.Counter
	expired      prometheus.Counter
	claimed      prometheus.Gauge
	waiting      prometheus.Gauge
	oldestWait   prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) metrics {
	auto := promauto.With(registry)
	m := metrics{
		frames: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_frames_total", Help: "Frames sent and received on sockets, by type and direction."}, []string{"type", "direction"}),
		rejected: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_frames_rejected_total", Help: "Frames from browsers that were rejected, by error code."}, []string{"code"}),
		audioDropped: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_browser_audio_dropped_total", Help: "Audio frames from browsers dropped above SESSION_MAX_AUDIO_BYTES_PER_SECOND."}),
		replayed: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_messages_replayed_total", Help: "Messages replayed to browsers after a reconnect or a gap."}),
		recoveries: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "telapi_recoveries_total", Help: "Attempts to resume from a cursor, by outcome."}, []string{"outcome"}),
		ackSeconds: auto.NewHistogram(prometheus.HistogramOpts{
			Name: "telapi_frame_ack_seconds", Help: "Time from receiving a frame to acknowledging it.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5}}),
		dropped: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_messages_dropped_total", Help: "Runtimes' messages dropped because they are not JSON objects."}),
		offers: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_offers_total", Help: "Offers of sessions to runtimes, including repeated ones."}),
		expired: auto.NewCounter(prometheus.CounterOpts{
			Name: "telapi_claims_expired_total", Help: "Claims that expired while the session's browser was connected."}),
		claimed: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_sessions_claimed", Help: "Sessions of this instance's WebSockets that a runtime has claimed."}),
		waiting: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_sessions_waiting", Help: "Sessions of this instance's WebSockets that wait for a runtime. Add those of all instances."}),
		oldestWait: auto.NewGauge(prometheus.GaugeOpts{
			Name: "telapi_sessions_waiting_seconds", Help: "Longest time that a session of this instance's WebSockets has been waiting for a runtime."}),
	}
	// Start at 0 so that an alert sees the first one as an increase.
	m.rejected.WithLabelValues(string(codeBackpressure))
	for _, outcome := range recoveryOutcomes {
		m.recoveries.WithLabelValues(outcome)
	}
	return m
}

var recoveryOutcomes = map[bool]string{true: "recovered", false: "failed"}

func (m metrics) recovered(ok bool) { m.recoveries.WithLabelValues(recoveryOutcomes[ok]).Inc() }
