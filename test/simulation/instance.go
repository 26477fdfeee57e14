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
	"telapi/internal/runtimeapi"
	"telapi/internal/session"
)

// instance is a place where a process of the service runs, crashes and starts
// again.
type instance struct {
	world *world
	name  string

	mu      sync.Mutex
	process *serviceProcess // nil while it is down
	closing sync.WaitGroup  // for the former process
	starts  int
}

// serviceProcess is one process of the service: its channel, callback, session and
// runtime layers.
type serviceProcess struct {
	instance    *instance
	host        *host
	started     time.Time
	kv          *redisstore.Store
	sessions    *session.Service
	channels    *channel.Service
	callbacks   *callback.Service
	runtimes    *runtimeapi.Service
	unsubscribe func()          // from notices of streamed answers
	ctx         context.Context // ends with the process
	cancel      context.CancelFunc
	tasks       sync.WaitGroup

	mu      sync.Mutex
	sockets []*serverSocket
	clients []*runtimeSocket
	stopped bool
}

// database keeps a crashed process from writing.
type database struct {
	session.Store
	host *host
}

func (d database) AddBrowserActions(ctx context.Context, actions []session.Action) (rejected int, err error) {
	if !d.host.alive() {
		return 0, fault.Unavailable("The database", errReset)
	}
	rejected, err = d.Store.AddBrowserActions(ctx, actions)
	if err == nil {
		d.host.world.ledger.actionsStored(actions)
	}
	return rejected, err
}

func (i *instance) start() {
	w := i.world
	if w.embedded { // it locks its data
		i.closing.Wait()
		w.disk.free()
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.process != nil {
		return
	}
	i.starts++
	w.trace(i.name, "starts")
	h := newHost(w, w.processName(i.name, i.starts))
	log := slog.New(slog.DiscardHandler)
	p := &serviceProcess{instance: i, host: h, started: time.Now()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.kv = redisstore.Open(redisstore.Options{
		RedisOptions: config.RedisOptions{Addrs: w.store.addresses(), Embedded: w.embedded}, Logger: log, Dial: h.dial, MinReplicas: w.replicas,
	})
	limits := channel.DefaultConnectionLimits()
	limits.PingIntervalMs = w.ping.Milliseconds()
	store := database{w.db, h}
	history := wire.DefaultChannelLimits()
	if w.small {
		history.HistoryMessages = smallHistory
	}
	if w.active == longRun {
		history.IdleMs, history.KeepMs = (30 * time.Minute).Milliseconds(), (10 * time.Minute).Milliseconds()
	}
	channels := redisstore.NewChannels(p.kv, history)
	p.sessions = &session.Service{Store: store, Channels: channels, Limits: limits, Now: time.Now}
	actions := session.NewActionQueue(store, true, log, prometheus.NewRegistry())
	sweeper := session.NewSweeper(p.sessions, time.Hour, time.Hour, log)
	recorder := struct {
		*session.Service
		*session.Sweeper
		*session.ActionQueue
	}{p.sessions, sweeper, actions}
	p.channels = channel.NewService(channels, recorder, limits, secret, log, prometheus.NewRegistry())
	callbacks := redisstore.NewCallbacks(p.kv)
	p.callbacks = callback.NewService(callbacks, p.channels, policy.PlatformPolicy{}, log, prometheus.NewRegistry(), time.Now, 100)
	p.unsubscribe = callbacks.SubscribeStreams(p.callbacks.StreamNotices())
	p.runtimes = newRuntimes(p, log)
	p.tasks.Go(func() { p.runtimes.Run(p.ctx) })
	p.tasks.Go(func() { p.kv.Subscribe(p.ctx) })
	p.tasks.Go(func() { actions.Run(p.ctx) })
	if w.deletion {
		p.tasks.Go(func() { sweeper.Run(p.ctx) })
	}
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

// crash ends the process without any clean-up. Its clients notice at once, unless silent is
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
	for _, s := range p.clients { // stopped, so that there are no more
		s.abandon(silent)
	}
	if i.world.embedded {
		p.restartStore(false)
	}
	i.end(p.close)
}

// stop ends the process gracefully.
func (i *instance) stop() {
	p := i.take()
	if p == nil {
		return
	}
	i.world.trace(i.name, "stops")
	i.world.ledger.instanceStops()
	p.mu.Lock()
	p.stopped = true
	sockets := p.sockets
	p.mu.Unlock()
	for _, s := range sockets {
		s.Close(channel.CloseRestart)
	}
	for _, s := range p.clients {
		s.drain()
	}
	i.end(func() {
		p.close()
		if i.world.embedded && !i.world.over() {
			p.restartStore(true)
		}
	})
}

// end waits for the end of a process.
func (i *instance) end(f func()) {
	i.closing.Add(1)
	i.world.running.Go(func() {
		defer i.closing.Done()
		f()
	})
}

// close waits for the sockets, then closes the parts of the process.
func (p *serviceProcess) close() {
	p.mu.Lock()
	sockets := p.sockets
	p.mu.Unlock()
	for _, s := range sockets {
		<-s.ended
	}
	for _, s := range p.clients {
		<-s.ended
	}
	p.cancel()
	p.tasks.Wait()
	p.unsubscribe()
	p.callbacks.Close()
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
