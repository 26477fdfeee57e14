package app

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"telapi/internal/pause"
)

// What /health says of one dependency.
const (
	checkOK          = "ok"
	checkDegraded    = "degraded"
	checkUnavailable = "unavailable"
	checkDisabled    = "disabled"
)

const (
	probeEvery   = time.Second
	probeLost    = 100 * time.Millisecond // while it is away: to be back soon
	probeTimeout = 2 * time.Second
)

// probe watches one dependency in the background, so that /health answers at
// once however slow the dependency is, and however often it is asked.
type probe struct {
	name  string
	what  string // in words, for the log
	lost  string // what /health says when it is away
	ping  func(context.Context) error
	state atomic.Value // string
}

func newProbe(name, what, lost string, ping func(context.Context) error) *probe {
	p := &probe{name: name, what: what, lost: lost, ping: ping}
	p.state.Store(lost)
	return p
}

func (p *probe) get() string { return p.state.Load().(string) }

// run probes until ctx ends, and logs when the dependency goes or comes back.
func (p *probe) run(ctx context.Context, log *slog.Logger) {
	wasOK, everOK := false, false
	for ctx.Err() == nil {
		err := p.once(ctx)
		isOK := err == nil
		switch {
		case ctx.Err() != nil:
			return
		case isOK && !wasOK && everOK:
			log.InfoContext(ctx, p.what+" is back")
		case !isOK && wasOK:
			log.WarnContext(ctx, p.what+" is away", "error", err)
		}
		wasOK, everOK = isOK, everOK || isOK
		if isOK {
			_ = pause.For(ctx, probeEvery)
		} else {
			_ = pause.For(ctx, probeLost)
		}
	}
}

func (p *probe) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := p.ping(ctx)
	if err != nil {
		p.state.Store(p.lost)
		return err
	}
	p.state.Store(checkOK)
	return nil
}
