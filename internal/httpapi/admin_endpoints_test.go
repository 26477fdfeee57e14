package httpapi

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"telapi/internal/fault"
)

// The profile counts too: it takes as much work as a callback.
func TestLargeLintRequestWaitsForLargeCallbacks(t *testing.T) {
	s, _ := newTestServer(nil)
	for range cap(s.largeCallbacks) {
		s.largeCallbacks <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := httptest.NewRequest("POST", "/", nil).WithContext(ctx)
	body := func(size int) []byte {
		const start, end = `{"kind":"bot","profile":{"x":"`, `"}}`
		return []byte(start + strings.Repeat("a", size-len(start)-len(end)) + end)
	}
	if err := s.lintCallback(nil, r, body(smallBody)); !fault.Is(err, fault.Validation) {
		t.Errorf("small request: error %v, want one about the missing body", err)
	}
	if err := s.lintCallback(nil, r, body(smallBody+1)); !errors.Is(err, context.Canceled) {
		t.Errorf("large request: error %v, want it to wait until it is canceled", err)
	}
}
