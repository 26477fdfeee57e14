// Package simulation runs the whole system in one process under a seeded
// schedule of faults: two instances of the service (channel, callback, session and
// runtime layers), two call runtimes, the scripts on the embedded engine, browsers and
// providers. The code of the service and of callruntime is the real one, with a WebSocket
// between them; browsers and providers are small state machines that follow docs and sdk/js.
//
// The seed also draws the world: one server, a cluster of two nodes whose clocks differ,
// replicas that confirm what is acknowledged, or the embedded store of a single instance,
// which loses what it stored after its last snapshot. Limits can be small, so that IDs are
// forgotten and histories trimmed, a session can be deleted, and some runs last an hour.
//
// A run lasts about a minute of virtual time and takes a fifth of a second. It is a synctest
// bubble: time advances when every goroutine waits. The network between runtimes, instances and
// the store delays bytes, holds them for seconds and delivers them afterwards, and loses
// requests and replies. Processes crash and
// start again, the store fails over to a replica that lacks the newest writes,
// clocks step, browsers leave and return. See faults.go for all faults.
//
// # What is checked
//
// The ledger records what was acknowledged. After faults and traffic have
// stopped, everything must be settled within a bound, and then: each
// acknowledged frame and callback is on the runtime stream once and in order, and
// a runtime received it; each acknowledged message reached the browser once and
// in order; each work item has one outcome, and none waited for an item that the
// runtime does not know; acknowledged data that a failover lost was reported to both sides;
// no browser was closed as replaced; browser actions are in the database; the runtime
// knows when a browser is gone; and after the end, no key is left. The audit
// checks what the store executes: one owner, one claim, no late effects.
//
// A process that crashes takes its knowledge with it. So a loss need not be
// reported if a process crashes after it, or if an instance stops just before it. A
// callback whose acceptance was lost is known to its provider only; its item times
// out.
//
// # How to read a failure
//
// A failing seed prints its violations and its trace, one line per event: virtual
// time in seconds, actor, event. Actors are named after their place and their
// life: instance2#3 is the third process of instance2. "store" lines are executed
// scripts, with the time that the request travelled. "scheduler" lines are faults.
// Start at the violation, follow the frame, message or item backwards to its
// acknowledgement, and look for the fault between. Then replay the seed with more
// output, or with a fix:
//
//	make simulate SEED=42
//
// # Determinism
//
// Every decision depends on the seed, the actor and the virtual time only: each
// actor has its own random numbers, crypto/rand is seeded, and delays have
// nanoseconds, so that two events rarely happen at the same instant. One thread
// runs all goroutines, and the garbage collector is off during a run.
//
// The Go runtime makes other choices at random or by the real time: which of
// several ready cases a select takes, where the iteration of a map starts, which of
// two timers at the same instant fires first, when it preempts a goroutine. The
// command in overlay takes this out of the runtime of the test, so that a seed replays
// exactly. The Makefile builds the tests with it and with the tag simulation.
package simulation
