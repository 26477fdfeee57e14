package demo

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

func TestSpeechIsRequestedAgainFromAnotherInstance(t *testing.T) {
	for name, tt := range map[string]struct {
		statuses []int // 0: the connection is closed
		want     string
	}{
		"instance ended":           {[]int{0, 200}, ""},
		"no instance for a moment": {[]int{503, 200}, ""},
		"no provider":              {[]int{503, 503}, "status 503"},
		"refused":                  {[]int{400}, "status 400"},
	} {
		var requests atomic.Int64
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			status := tt.statuses[requests.Add(1)-1]
			if status == 0 || string(body) != `{"text":"Hello."}` {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "speech")
		}))
		e := &channelEffects{RuntimeOptions: RuntimeOptions{API: api.URL, Client: api.Client()}}
		got, err := e.callAPI(t.Context(), http.MethodPost, "/speech", map[string]string{"text": "Hello."})
		if tt.want == "" && (err != nil || string(got) != "speech") || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) || int(requests.Load()) != len(tt.statuses) {
			t.Errorf("%s: got %q, %v after %d requests, want %q after %d", name, got, err, requests.Load(), tt.want, len(tt.statuses))
		}
		api.Close()
	}
}
