package callruntime_test

import (
	"context"
	"errors"
	"testing"

	"telapi/callruntime/wire"
)

// watchedContext notes that a call waits.
type watchedContext struct {
	context.Context
	watched chan struct{}
}

func (c watchedContext) Done() <-chan struct{} {
	select {
	case c.watched <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

func TestAcceptTakesOverAbandonedAccept(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	short, cancel := context.WithCancel(ctx(t))
	abandoned := async(func() error { _, err := r.Accept(short, wire.Accept{}); return err })
	first := p.read(wire.OpAccept)
	cancel()
	if err := abandoned(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	waiting := watchedContext{ctx(t), make(chan struct{}, 1)}
	accepted := async(func() error { _, err := r.Accept(waiting, wire.Accept{}); return err })
	<-waiting.watched // otherwise the reply to the first could come before
	other := async(func() error { _, err := r.Accept(ctx(t), wire.Accept{Modes: []string{"audio"}}); return err })
	p.reply(p.read(wire.OpAccept), wire.Claimed{Channel: "other", Claim: "x"}) // the only further request
	if err := other(); err != nil {
		t.Fatal(err)
	}
	p.reply(first, wire.Claimed{Channel: "s", Claim: "secret"})
	if err := accepted(); err != nil {
		t.Error(err)
	}
}

func TestSessionOfAbandonedAcceptIsReleased(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	short, cancel := context.WithCancel(ctx(t))
	abandoned := async(func() error { _, err := r.Accept(short, wire.Accept{}); return err })
	q := p.read(wire.OpAccept)
	cancel()
	if err := abandoned(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	p.reply(q, wire.Claimed{Channel: "s", Claim: "secret"})
	if release := p.read(wire.OpRelease); release.Channel != "s" {
		t.Errorf("got %s", release.Raw)
	}
}

// The reply to an abandoned open arrives when the channel is being opened again.
func TestRepeatedOpenKeepsItsChannel(t *testing.T) {
	s, r := start(t)
	p, _ := s.welcome()
	open := func(ctx context.Context, mode string) (received, func() error) {
		opened := async(func() error {
			_, err := r.Open(ctx, "s", wire.Open{Endpoint: "e", Mode: mode})
			return err
		})
		return p.read(wire.OpOpen), opened
	}
	short, cancel := context.WithCancel(ctx(t))
	first, abandoned := open(short, "chat")
	cancel()
	if err := abandoned(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	second, opened := open(ctx(t), "audio")
	for _, q := range []received{first, second} {
		p.reply(q, wire.Claimed{Channel: "s", Claim: "secret"})
	}
	if err := opened(); err != nil {
		t.Error(err)
	}
	for range 3 { // no release follows
		settle(t, p, r)
	}
}
