// Package callruntime_test tests what needs no service. Package telapi/test/libraries plays
// scenarios with a scripted service for this and the other libraries.
package callruntime_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

func TestInvalidOptionsAreRejected(t *testing.T) {
	for want, o := range map[string]callruntime.Options{
		"Options.URL":  {URL: "localhost:3000", Key: "k", Name: "n"},
		"Options.Key":  {URL: "http://localhost", Name: "n"},
		"Options.Name": {URL: "http://localhost", Key: "k"},
	} {
		if _, err := callruntime.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want an error about %s", o, err, want)
		}
	}
}

func TestUnreachableServiceIsReported(t *testing.T) {
	var log bytes.Buffer
	tries, unreachable := make(chan struct{}), errors.New("no such host")
	r, err := callruntime.New(callruntime.Options{
		URL: "http://telapi.invalid", Key: "tk_1_secret", Name: "test", Log: slog.New(slog.NewTextHandler(&log, nil)),
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			select {
			case tries <- struct{}{}:
			case <-ctx.Done():
			}
			return nil, unreachable
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	limited, cancel := context.WithCancel(t.Context())
	for range 3 { // the second attempt begins after the first has failed
		<-tries
	}
	cancel()
	if _, err := r.Accept(limited, wire.Accept{}); !errors.Is(err, context.Canceled) || !errors.Is(err, unreachable) {
		t.Errorf("accept: %v, want canceled and why there is no connection", err)
	}
	r.Close()
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "no such host") {
		t.Errorf("log:\n%s\nwant one warning", text)
	}
}
