package callruntime_test

import (
	"bytes"
	"runtime/pprof"
	"testing"
	"time"

	"telapi/callruntime"
)

// A client that is closed may still reach a cluster for a while: a runtime that
// went on renewing its claims would keep them from its successor.
func TestClosedRuntimeHoldsOnToNothing(t *testing.T) {
	dataDir, stop := browserSays("hello")
	defer stop()
	store, err := callruntime.Locate("", dataDir)
	if err != nil {
		t.Fatal(err)
	}
	runtime, err := callruntime.New(callruntime.Options{Store: store, Name: "node-1", Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := runtime.Accept(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if !renewing(t) {
		t.Error("nothing renews the claim, or it goes by another name")
	}
	runtime.Close()
	if renewing(t) {
		t.Error("it renews a claim after its end")
	}
}

func renewing(t *testing.T) bool {
	t.Helper()
	var stacks bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 2); err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(stacks.Bytes(), []byte("callruntime.(*Channel).renew("))
}
