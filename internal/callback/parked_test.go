package callback_test

import (
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestOldestParkedCallbackIsReported(t *testing.T) {
	f := newFixture(t, options{})
	age := func(want time.Duration) {
		t.Helper()
		if got := f.metric("telapi_callback_oldest_parked_seconds").GetGauge().GetValue(); got != want.Seconds() {
			t.Errorf("oldest parked callback: %v s, want %v", got, want)
		}
	}
	// park opens a channel, parks n callbacks, one each second, and returns the
	// callback that they wait for.
	park := func(id string, n int) (first callback.Request) {
		t.Helper()
		c := f.open(id, "")
		first = f.requestOn(c, calls.AwaitOptions{}, helloBody)
		for range n {
			if receipt := f.accept(f.requestOn(c, calls.AwaitOptions{}, helloBody)); receipt.Status != "parked" {
				t.Fatalf("receipt %+v", receipt)
			}
			f.now = f.now.Add(time.Second)
		}
		return first
	}
	age(0)
	f.checkCalls("") // nothing was parked, so that there is nothing to query
	start := f.now
	a, b, c := park("call-a", 1), park("call-b", callback.ParkedBatch+1), park("call-c", 1)
	all := f.now.Sub(start)
	age(all)
	f.accept(b)
	age(all) // those of b are routed, but the one of a is older
	f.accept(a)
	age(time.Second)
	f.store.parkedErr = errStoreDown
	f.now = f.now.Add(time.Second)
	age(2 * time.Second)
	f.store.parkedErr = nil
	f.accept(c)
	age(0)
}

// A team with its share of parked bytes cannot park more: nothing changes. Callbacks
// that need not wait, and those of other teams, are accepted. Routed callbacks make
// room.
func TestTeamsShareParkedBytes(t *testing.T) {
	f := newFixture(t, options{})
	first := f.request(wire.BotItem, helloBody)
	parked, rejected := f.request(wire.BotItem, helloBody), f.request(wire.BotItem, helloBody)
	testkit.Must(t, f.service.TakeParked("team", f.service.ParkedShare()-2<<10))
	if receipt := f.accept(parked); receipt.Status != "parked" {
		t.Fatalf("receipt %+v, want parked", receipt)
	}
	for range 2 { // the first attempt asks the store what is still parked
		if _, err := f.service.Accept(t.Context(), rejected); !fault.Is(err, fault.RateLimitExceeded) || fault.From(err).RetryAfter == 0 {
			t.Errorf("over the share: %v, want RATE_LIMIT_EXCEEDED with Retry-After", err)
		}
	}
	f.checkCalls("channel deliver parked deliver deliver")
	other := f.openOf("other", "call-2", "")
	f.requestOn(other, calls.AwaitOptions{}, helloBody)
	if receipt := f.accept(f.requestOn(other, calls.AwaitOptions{}, helloBody)); receipt.Status != "parked" {
		t.Errorf("another team's receipt %+v, want parked", receipt)
	}
	waiting := f.open("call-3", "")
	f.requestOn(waiting, calls.AwaitOptions{}, helloBody)
	if receipt := f.accept(first); receipt.Status != "accepted" {
		t.Errorf("receipt %+v of the callback that others wait for, want accepted", receipt)
	}
	f.now = f.now.Add(time.Second)
	if receipt := f.accept(f.requestOn(waiting, calls.AwaitOptions{}, helloBody)); receipt.Status != "parked" {
		t.Errorf("receipt %+v after others were routed, want parked", receipt)
	}
	if receipt := f.accept(rejected); receipt.Status != "accepted" {
		t.Errorf("receipt %+v of the rejected callback, want accepted", receipt)
	}
}

func TestParkedCallbackTakesItsSize(t *testing.T) {
	f := newFixture(t, options{})
	f.request(wire.BotItem, helloBody)
	f.accept(f.request(wire.BotItem, helloBody))
	size := int64(1<<10 + len(f.store.delivered[0].Entries[0]) + len(f.store.delivered[0].Receipt))
	testkit.NoError(t, "the rest of the share", f.service.TakeParked("team", f.service.ParkedShare()-size))
	testkit.WantFault(t, "one byte more", f.service.TakeParked("team", 1), fault.RateLimitExceeded)
}

func TestOneQueryForParkedCallbacksAtATime(t *testing.T) {
	f := newFixture(t, options{})
	f.request(wire.BotItem, helloBody)
	testkit.Must(t, f.service.TakeParked("team", f.service.ParkedShare()-2<<10))
	f.accept(f.request(wire.BotItem, helloBody))
	r := f.request(wire.BotItem, helloBody)
	f.store.onParked = func() {
		f.store.onParked = nil
		f.now = f.now.Add(time.Minute)
		testkit.WantFault(t, "during the query", testkit.ErrorOf(f.service.Accept(t.Context(), r)), fault.RateLimitExceeded)
	}
	testkit.WantFault(t, "after the query", testkit.ErrorOf(f.service.Accept(t.Context(), r)), fault.RateLimitExceeded)
	f.checkCalls("channel deliver parked deliver deliver")
}
