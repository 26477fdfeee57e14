package media_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/media"
)

func TestRequestsAreLoggedAtDebugLevel(t *testing.T) {
	for level, want := range map[slog.Level]map[string]int{
		slog.LevelDebug: {
			`"method":"PUT","path":"/media/ab/greeting.alaw","status":201,"bytes":0,`:  1,
			`"method":"PUT","path":"/media/ab/greeting.alaw","status":401,`:            1,
			`"method":"GET","path":"/media/ab/greeting.alaw","status":200,"bytes":20,`: 2,
			`"memory":true`: 1,
			`"method":"GET","path":"/media/ab/none.alaw","status":404,`: 1,
		},
		slog.LevelInfo: {`"method"`: 0},
	} {
		var log bytes.Buffer
		s := start(t, media.Options{
			MemoryBytes: 1 << 20, UploadTokens: tokens(token), Log: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: level})),
		}, nil)
		s.mustPut(blobURL, content)
		s.do("GET", blobURL, "")
		s.do("GET", blobURL+"?from-disk", "")
		s.do("GET", "/media/ab/none.alaw", "")
		s.do("PUT", blobURL, "x", "Authorization", "Bearer another-token")
		s.stop()
		for line, times := range want {
			if got := strings.Count(log.String(), line); got != times {
				t.Errorf("level %v: %d lines with %s, want %d:\n%s", level, got, line, times, &log)
			}
		}
		if strings.Contains(log.String(), token) || strings.Contains(log.String(), "another-token") {
			t.Errorf("the log contains a token:\n%s", &log)
		}
	}
}

func TestBytesAreCountedFromMemoryAndDisk(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := start(t, media.Options{MemoryBytes: 1 << 20, UploadTokens: tokens(token), Registry: registry}, nil)
	s.mustPut(blobURL, content)
	s.do("GET", blobURL, "")
	s.do("GET", blobURL+"?from-disk", "")
	s.do("GET", blobURL, "", "Range", "bytes=0-2")
	s.stop()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	transferred := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "telapi_media_bytes_total" {
			for _, m := range family.GetMetric() {
				transferred[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if transferred["in"] != 20 || transferred["out"] != 43 {
		t.Errorf("bytes %v, want 20 in and 43 out", transferred)
	}
}

func TestDrainingServiceClosesConnections(t *testing.T) {
	s := start(t, media.Options{}, nil)
	if resp, body := s.do("GET", "/health", ""); resp.StatusCode != 200 || body != "ok" || resp.Close {
		t.Errorf("before draining: status %d, %q, close %v; want 200, ok, false", resp.StatusCode, body, resp.Close)
	}
	s.drain()
	if resp, body := s.do("GET", "/health", ""); resp.StatusCode != 503 || !strings.Contains(body, "SERVICE_UNAVAILABLE") || !resp.Close {
		t.Errorf("draining: status %d, %q, close %v; want 503, SERVICE_UNAVAILABLE, true", resp.StatusCode, body, resp.Close)
	}
}

func TestServiceWithoutTokenRejectsForeignHosts(t *testing.T) {
	s := start(t, media.Options{MemoryBytes: 1 << 20}, nil)
	s.mustPut(blobURL, content)
	for host, want := range map[string]int{s.addr: 200, "localhost:3002": 200, "[::1]": 200, "rebound.example:3002": 403, "192.0.2.1": 403, "localhost.example": 403} {
		for range 2 { // the second could come from memory
			if status, body := s.raw("GET "+blobURL+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n", "GET"); status != want {
				t.Errorf("GET with Host %s: %d %s, want %d", host, status, body, want)
			}
		}
		put := "PUT /media/ab/x.pcm HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 1\r\n\r\nx"
		if status, body := s.raw(put, "PUT"); (status == 403) != (want == 403) {
			t.Errorf("PUT with Host %s: %d %s, want 403: %v", host, status, body, want == 403)
		}
	}
}
