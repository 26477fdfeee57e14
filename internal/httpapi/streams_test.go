package httpapi

import (
	"net/http/httptest"
	"strings"
	"testing"

	"telapi/internal/fault"
	"telapi/internal/httpserve"
)

func TestTeamsShareTheMemoryForResponsesWithAudio(t *testing.T) {
	s, _ := newTestServer(nil)
	respond := func(teamID string, length int, want fault.Code) {
		t.Helper()
		sent := httptest.NewRecorder()
		x := &exchange{holder: teamID, Response: httpserve.Response{ResponseWriter: sent, Request: httptest.NewRequest("POST", "/", nil)}}
		err := x.respondWithAudio(s.audio, length, map[string]int{"length": length})
		if want == "" && (err != nil || !strings.Contains(sent.Body.String(), "length")) || want != "" && !fault.Is(err, want) {
			t.Errorf("%d bytes of %s: %v, sent %s; want %q", length, teamID, err, sent.Body, want)
		}
	}
	respond("a", audioBudget, "") // larger than the share, but the only one
	if err := s.audio.Take("a", s.audio.Share()-4); err != nil {
		t.Fatal(err)
	}
	respond("a", 1, "")
	respond("a", 2, fault.RateLimitExceeded)
	respond("b", audioBudget, "")
	if used := s.audio.Used(); used != s.audio.Share()-4 {
		t.Errorf("%d bytes are used after the responses, want %d", used, s.audio.Share()-4)
	}
}
