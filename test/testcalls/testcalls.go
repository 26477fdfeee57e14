// Package testcalls accepts sessions from the key-value store, for tests that run without the
// runtime API.
package testcalls

import (
	"context"
	"crypto/rand"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

// Accept waits for an unclaimed session, claims it under a name and returns its channel. It leaves
// sessions for which want returns false to others; nil accepts all.
func Accept(ctx context.Context, r *calls.Runtime, name string, want func(wire.Offer) bool) (*calls.Channel, error) {
	got := make(chan *calls.Channel, 1)
	d := &calls.Demand{
		Claim: func(context.Context, string) (calls.Claim, error) {
			return calls.Claim{Name: name, Token: rand.Text()}, nil
		},
		Got: func(c *calls.Channel) { got <- c },
	}
	if want != nil {
		d.Want = func(o *wire.Offer) bool { return want(*o) }
	}
	r.Demand(d)
	select {
	case c := <-got:
		return c, nil
	case <-ctx.Done():
	}
	if !r.Withdraw(d) { // it is being claimed
		if c := <-got; c != nil {
			return c, nil
		}
	}
	return nil, ctx.Err()
}
