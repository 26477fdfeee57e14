package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"telapi/internal/fault"
	"telapi/test/testkit"
)

func TestRepeatedRejectionsAreLoggedAsACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := newTestServer(func(*exchange, *http.Request) error { return fault.New(fault.Validation, "No.") })
		get := func(path, client string) {
			r := httptest.NewRequest("GET", path, nil)
			r.RemoteAddr = client
			s.ServeHTTP(httptest.NewRecorder(), r)
		}
		for range 1_000 {
			get("/unknown", "192.0.2.1:1")
		}
		get("/try", "192.0.2.1:2")
		get("/unknown", "192.0.2.2:1")
		lines := func() int { return strings.Count(log.String(), `"msg":"request"`) }
		if n := lines(); n != loggedRejections+1 {
			t.Errorf("%d lines, want %d of one client and 1 of the other", n, loggedRejections)
		}
		time.Sleep(rejectionWindow)
		synctest.Wait()
		want := fmt.Sprintf(`"msg":"more rejected requests","client":"192.0.2.1","requests":%d,"codes":"NOT_FOUND=%d VALIDATION_ERROR=1"`, 1_001-loggedRejections, 1_000-loggedRejections)
		if !strings.Contains(log.String(), want) || strings.Count(log.String(), "more rejected") != 1 {
			t.Errorf("log has no line with %s:\n%s", want, log)
		}
		get("/unknown", "192.0.2.1:1")
		testkit.Equal(t, "lines after the window", lines(), loggedRejections+2)
		time.Sleep(rejectionWindow)
	})
}

// A client that disconnects, or resets its streams, causes no server error.
func TestRequestsOfDisconnectedClientsAreLoggedAsACount(t *testing.T) {
	s, log := newTestServer(func(_ *exchange, r *http.Request) error { return r.Context().Err() })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 * loggedRejections {
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/try", nil).WithContext(ctx))
	}
	s.rejections.flush()
	if want := fmt.Sprintf("CLIENT_CLOSED=%d", 2*loggedRejections); !strings.Contains(log.String(), want) {
		t.Errorf("log has no line with %s:\n%s", want, log)
	}
}

func TestServerErrorsAreAlwaysLogged(t *testing.T) {
	s, log := newTestServer(func(*exchange, *http.Request) error { return http.ErrNotSupported })
	for range 3 * loggedRejections {
		s.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/try", nil))
	}
	testkit.Equal(t, "lines", strings.Count(log.String(), `"code":"INTERNAL_ERROR"`), 3*loggedRejections)
}

func TestRejectionsOfManyClientsShareACount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := &rejectionLog{log: slog.New(slog.NewTextHandler(&out, nil))}
		logged := 0
		for i := range 3 * maxRejectedClients {
			client := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			for range 2 {
				if l.admit(client, fault.NotFound) {
					logged++
				}
			}
		}
		if want := 2*maxRejectedClients + loggedRejections; logged != want || len(l.clients) != maxRejectedClients+1 {
			t.Errorf("%d lines and %d clients, want %d and %d", logged, len(l.clients), want, maxRejectedClients+1)
		}
		l.flush()
		if want := fmt.Sprintf("client=others requests=%d", 4*maxRejectedClients-loggedRejections); !strings.Contains(out.String(), want) {
			t.Errorf("log %q, want %s", out.String(), want)
		}
	})
}
