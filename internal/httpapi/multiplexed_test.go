package httpapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

func TestOldestHTTP2RequestIsCut(t *testing.T) {
	m := &multiplexed{max: 2}
	started := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer m.begin(w)()
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		started <- struct{}{}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _ = w.Write(body)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	var bodies [4]*io.PipeWriter
	var answers [4]string
	var clients sync.WaitGroup
	for i := range bodies {
		var body io.Reader
		body, bodies[i] = io.Pipe()
		clients.Go(func() {
			resp, err := server.Client().Post(server.URL, "", body)
			if err != nil {
				answers[i] = "cut"
				return
			}
			defer func() { _ = resp.Body.Close() }()
			read, err := io.ReadAll(resp.Body)
			if answers[i] = string(read); err != nil {
				answers[i] = "cut"
			}
		})
		<-started
	}
	for _, b := range bodies[2:] {
		_, _ = io.WriteString(b, "complete")
	}
	for _, b := range bodies {
		_ = b.Close()
	}
	clients.Wait()
	if want := [4]string{"cut", "cut", "complete", "complete"}; answers != want {
		t.Errorf("answers %q, want %q", answers, want)
	}
	if m.requests.Len() != 0 {
		t.Errorf("%d requests are still counted", m.requests.Len())
	}
}
