package httpapi

import (
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
)

func TestStreamsAreLimited(t *testing.T) {
	l := newStreamLimit("streams", 2, 3)
	begin := func(subject string, want fault.Code) (end func()) {
		t.Helper()
		end, err := l.begin(subject)
		if want == "" && err != nil || want != "" && (!fault.Is(err, want) || fault.From(err).RetryAfter == 0) {
			t.Errorf("stream of %s: %v, want %q with Retry-After", subject, err, want)
		}
		return end
	}
	endA := begin("a", "")
	begin("a", "")
	begin("a", fault.RateLimitExceeded)
	endB := begin("b", "")
	begin("b", fault.ServiceUnavailable)
	begin("a", fault.RateLimitExceeded)
	endA()
	begin("b", "")
	endB()
	begin("c", "")
	if len(l.open) != 3 || l.all != 3 {
		t.Errorf("%d streams of %v, want one of each", l.all, l.open)
	}
}

func TestResponsesWithAudioHaveABudget(t *testing.T) {
	var budget atomic.Int64
	respond := func(length int) error {
		sent := httptest.NewRecorder()
		x := &exchange{Response: httpserve.Response{ResponseWriter: sent, Request: httptest.NewRequest("POST", "/", nil)}}
		err := x.respondWithAudio(&budget, length, map[string]int{"length": length})
		if err == nil && !strings.Contains(sent.Body.String(), "length") {
			t.Errorf("sent %s, want the response", sent.Body)
		}
		return err
	}
	if err := respond(audioBudget); err != nil { // larger than the budget, but the only one
		t.Error(err)
	}
	budget.Add(audioBudget - 4)
	if err := respond(1); err != nil {
		t.Error(err)
	}
	if err := respond(2); !fault.Is(err, fault.ServiceUnavailable) || fault.From(err).RetryAfter == 0 {
		t.Errorf("over the budget: %v, want SERVICE_UNAVAILABLE with Retry-After", err)
	}
	if used := budget.Load(); used != audioBudget-4 {
		t.Errorf("%d bytes are used after the responses, want %d", used, audioBudget-4)
	}
}
