package speech

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/singleflight"
)

// flights runs one synthesis for concurrent identical requests of this instance.
type flights struct {
	group singleflight.Group

	mu       sync.Mutex
	lifetime context.Context // of the service, not of a request
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

func (f *flights) open() { f.lifetime, f.cancel = context.WithCancel(context.Background()) }

// close cancels all flights and waits for them. No more can begin.
func (f *flights) close() {
	f.mu.Lock()
	f.cancel()
	f.mu.Unlock()
	f.running.Wait()
}

// begin returns the context of a flight and a function that ends it.
func (f *flights) begin(ctx context.Context) (_ context.Context, end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.lifetime.Err(); err != nil {
		return nil, nil, fmt.Errorf("speech service closed: %w", err)
	}
	f.running.Add(1)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), synthesisTimeout)
	stop := context.AfterFunc(f.lifetime, cancel)
	return ctx, func() { stop(); cancel(); f.running.Done() }, nil
}

// do runs a flight, or waits for the one with the same key. Billed reports
// whether this call caused a synthesis. A flight continues when its caller
// disconnects: others may wait for it, and a paid synthesis is worth caching.
func (f *flights) do(ctx context.Context, key string, run func(context.Context) (result, error)) (made result, billed bool, err error) {
	first := false
	done := f.group.DoChan(key, func() (_ any, err error) {
		first = true
		ctx, end, err := f.begin(ctx)
		if err != nil {
			return nil, err
		}
		defer end()
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		return run(ctx)
	})
	select {
	case <-ctx.Done():
		return result{}, false, fmt.Errorf("wait for speech: %w", ctx.Err())
	case flight := <-done:
		if flight.Err != nil {
			return result{}, false, flight.Err
		}
		made := flight.Val.(result)
		return made, first && made.synthesized, nil
	}
}
