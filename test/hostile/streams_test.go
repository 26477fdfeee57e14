package hostile

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"telapi/test/harness"
)

// request sends a request whose response is not read, except for its status.
func (a *target) request(method, path, key, body string) int {
	conn := a.dial()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	_, err := fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: a\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, key, len(body), body)
	if err != nil {
		a.Error(err)
		return 0
	}
	line, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	status := 0
	if _, scanErr := fmt.Sscanf(line, "HTTP/1.1 %d", &status); err != nil || scanErr != nil {
		a.Errorf("%s %s: %q, %v", method, path, line, err)
	}
	return status
}

// Feeds that clients never read, of a session with a full history.
func TestUnreadFeedsNeedBoundedMemory(t *testing.T) {
	onAllStores(t, harness.Env{"PLAYGROUND_ENABLED": "true", "TEAM_SHARE_PERCENT": "100"}, attackUnreadFeedsNeedBoundedMemory)
}

func attackUnreadFeedsNeedBoundedMemory(a *target) {
	t := a.T
	id, _ := a.fullSession()
	a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 1 << 20}, func() {
		var got statuses
		inParallel(50, func(int) { got.add(a.request("GET", "/playground/feed?sessionId="+id, a.tenant.Key, "")) })
		if want := map[int]int{200: 32, 503: 18}; fmt.Sprint(got.counts) != fmt.Sprint(want) {
			t.Errorf("answers by status %v, want %v", got.counts, want)
		}
	})
}

// Speech that clients never read: in the responses, and from the media service.
func TestUnreadSpeechNeedsBoundedMemory(t *testing.T) {
	a := startTarget(t, harness.Merge(harness.StartMedia(t).Env, harness.Env{"SPEECH_PROVIDERS": "tone"}))
	text := strings.Repeat("a", 4_096)
	body := fmt.Sprintf(`{"text":%q,"encoding":"pcm","sampleRate":24000}`, text) // 60 s, 2.9 MB
	resp, answer := a.instance.Post(t, "/api/v1/runtime/speech", body, "X-API-Key", a.tenant.Key)
	_, url, _ := strings.Cut(answer, `"url":"`)
	url, _, _ = strings.Cut(url, `"`)
	if resp.StatusCode != http.StatusOK || url == "" {
		t.Fatalf("speech: %d %s", resp.StatusCode, answer)
	}
	a.attack(growth{log: 1 << 20, redis: 32 << 20, database: 1 << 20}, func() {
		var got statuses
		var clients sync.WaitGroup
		for range 48 {
			clients.Go(func() {
				got.add(a.request("POST", "/api/v1/runtime/speech", a.tenant.Key, strings.Replace(body, "{", `{"disableCache":true,`, 1)))
			})
		}
		clients.Wait()
		inParallel(64, func(int) { got.add(a.request("GET", url, a.tenant.Key, "")) })
		got.expect(t, 200, 429, 503)
	})
}
