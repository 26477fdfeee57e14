package simulation

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/channel"
	policy "telapi/internal/command"
	"telapi/internal/config"
	"telapi/internal/fault"
	"telapi/internal/redisstore"
	"telapi/internal/session"
)

// pingInterval of sockets. It is shorter than the default, so that leases
// expire within a run.
const pingInterval = 4 * time.Second

// instance is a place where a process of the service runs, crashes and starts
// again.
type instance struct {
	world *world
	name  string

	mu      sync.Mutex
	process *serviceProcess // nil while it is down
	starts  int
}

// serviceProcess is one process of the service: its channel, callback and
// session layers.
type serviceProcess struct {
	instance  *instance
	host      *host
	kv        *redisstore.Store
	channels  *channel.Service
	callbacks *callback.Service
	ctx       context.Context // ends with the process
	cancel    context.CancelFunc
	tasks     sync.WaitGroup

	mu      sync.Mutex
	sockets []*serverSocket
	stopped bool
}

// database keeps a crashed process from writing.
type database struct {
	session.Store
	host *host
}

func (d database) AddBrowserActions(ctx context.Context, actions []session.Action) (refused int, err error) {
	if !d.host.alive() {
		return 0, fault.Unavailable("The database", errReset)
	}
	refused, err = d.Store.AddBrowserActions(ctx, actions)
	if err == nil {
		d.host.world.ledger.actionsStored(actions)
	}
	return refused, err
}

func (i *instance) start() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process != nil {
		return
	}
	i.starts++
	w := i.world
	w.trace(i.name, "starts")
	h := newHost(w, w.processName(i.name, i.starts))
	log := slog.New(slog.DiscardHandler)
	p := &serviceProcess{instance: i, host: h}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.kv = redisstore.Open(redisstore.Options{
		RedisOptions: config.RedisOptions{Addrs: []string{"store:6379"}, Embedded: true}, Logger: log, Dial: h.dial,
	})
	limits := channel.DefaultLimits()
	limits.PingIntervalMs = pingInterval.Milliseconds()
	store := database{w.db, h}
	channels := redisstore.NewChannels(p.kv, wire.DefaultChannelLimits())
	sessions := &session.Service{Store: store, Channels: channels, Limits: limits, Now: time.Now}
	actions := session.NewActionQueue(store, true, log, prometheus.NewRegistry())
	sweeper := session.NewSweeper(sessions, time.Hour, time.Hour, log)
	var recorder channel.Sessions = struct {
		*session.Service
		*session.Sweeper
		*session.ActionQueue
	}{sessions, sweeper, actions}
	if w.mutation.ForgetRepeatedActions {
		recorder = droppingSessions{recorder, w.audit}
	}
	p.channels = channel.NewService(channels, recorder, limits, log, prometheus.NewRegistry())
	p.callbacks = callback.NewService(redisstore.NewCallbacks(p.kv), p.channels, policy.PlatformPolicy{}, log, prometheus.NewRegistry(), time.Now, 100)
	p.tasks.Go(func() { p.kv.Subscribe(p.ctx) })
	p.tasks.Go(func() { actions.Run(p.ctx) })
	i.process = p
}

func (i *instance) current() *serviceProcess {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.process
}

func (i *instance) take() *serviceProcess {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.process
	i.process = nil
	return p
}

// crash ends the process without any clean-up. Browsers notice at once, unless silent is
// set. The store still executes the commands that are under way if effect is set.
func (i *instance) crash(silent, effect bool) {
	p := i.take()
	if p == nil {
		return
	}
	i.world.trace(i.name, "crashes (silent: %v, effect: %v)", silent, effect)
	i.world.ledger.instanceCrashed(p)
	p.host.crash(effect)
	p.mu.Lock()
	p.stopped = true
	sockets := p.sockets
	p.mu.Unlock()
	for _, s := range sockets {
		s.abandon(silent)
	}
	i.world.running.Go(p.close)
}

// stop ends the process gracefully.
func (i *instance) stop() {
	p := i.take()
	if p == nil {
		return
	}
	i.world.trace(i.name, "stops")
	p.mu.Lock()
	p.stopped = true
	sockets := p.sockets
	p.mu.Unlock()
	for _, s := range sockets {
		s.Close(channel.CloseRestart)
	}
	i.world.running.Go(p.close)
}

// close waits for the sockets, then closes the parts of the process.
func (p *serviceProcess) close() {
	p.mu.Lock()
	sockets := p.sockets
	p.mu.Unlock()
	for _, s := range sockets {
		<-s.ended
	}
	p.cancel()
	p.tasks.Wait()
	p.channels.Close()
	p.kv.Close()
	p.host.crash(true) // the client may leave a connection behind that it was dialing
}

// add registers a socket unless the process is stopping.
func (p *serviceProcess) add(s *serverSocket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.sockets = append(p.sockets, s)
	return true
}
