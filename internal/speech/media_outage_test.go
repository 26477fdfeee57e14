package speech_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"telapi/internal/fault"
	"telapi/internal/speech"
)

func TestRequestsSucceedDuringMediaOutage(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s, blobs := e.service(t, p), &unavailableBlobs{BlobStore: e.blobs}
	s.Blobs = blobs
	known := synthesize(t, s, `{"text":"known"}`)
	blobs.down.Store(true)
	for _, text := range []string{"known", "new", "known"} {
		if r := synthesize(t, s, `{"text":"`+text+`"}`); r.Cached || r.URL != "" || len(r.Audio) == 0 {
			t.Errorf("%q during the outage: %+v, want audio and no URL", text, r)
		}
	}
	playback, err := s.Open(t.Context(), "t1", known.Hash+".alaw")
	if err != nil {
		t.Fatal(err)
	}
	if err := playback.Failed(t.Context(), speech.ErrBlobsUnavailable); !fault.Is(err, fault.ServiceUnavailable) || fault.From(err).RetryAfter == 0 {
		t.Errorf("play during the outage: %v, want SERVICE_UNAVAILABLE with Retry-After", err)
	}
	blobs.down.Store(false)
	e.advance(speech.BlobRetryDelay)
	if r := synthesize(t, s, `{"text":"known"}`); !r.Cached || r.URL == "" {
		t.Errorf("known text after the outage: %+v, want a cached response", r)
	}
	blobs.down.Store(true)
	synthesize(t, s, `{"text":"known"}`)
	blobs.down.Store(false)
	e.advance(-time.Hour)
	if r := synthesize(t, s, `{"text":"known"}`); !r.Cached || r.URL == "" {
		t.Errorf("known text after the clock was set back: %+v, want a cached response", r)
	}
	if r := synthesize(t, s, `{"text":"new"}`); r.Cached || r.URL == "" {
		t.Errorf("new text after the outage: %+v, want a synthesis that is cached", r)
	}
	withoutBlobs := e.service(t, p)
	withoutBlobs.Blobs = nil
	if r := synthesize(t, withoutBlobs, `{"text":"known"}`); r.Cached || len(r.Audio) == 0 {
		t.Errorf("without a media service: %+v, want audio", r)
	}
	if _, err := withoutBlobs.Open(t.Context(), "t1", known.Hash+".alaw"); !fault.Is(err, fault.NotFound) {
		t.Errorf("play without a media service: %v, want NOT_FOUND", err)
	}
}

func TestCancelledRequestDoesNotSuspendMediaService(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Save(cancelled, p, make([]byte, 16)) {
		t.Error("saved with a cancelled context")
	}
	if r := synthesize(t, s, `{"text":"abc"}`); r.URL == "" {
		t.Errorf("the media service is suspended: %+v", r)
	}
}

func TestRejectedBlobDoesNotSuspendMediaService(t *testing.T) {
	e := newEnv(t)
	s := e.service(t, &provider{name: "primary"})
	s.Blobs = limitedBlobs{e.blobs, 10_000}
	if r := synthesize(t, s, `{"text":"`+strings.Repeat("long", 100)+`"}`); r.Cached || r.URL != "" || len(r.Audio) != 40_000 {
		t.Errorf("rejected blob: %+v, want 40,000 bytes of audio and no URL", r)
	}
	if r := synthesize(t, s, `{"text":"short"}`); r.URL == "" {
		t.Errorf("next request: %+v, want a URL", r)
	}
}

func TestCachedSpeechIsServedWhileMediaServiceIsFull(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	synthesize(t, s, `{"text":"cached"}`)
	s.Blobs = limitedBlobs{e.blobs, 0}
	if r := synthesize(t, s, `{"text":"new"}`); r.URL != "" || len(r.Audio) == 0 {
		t.Errorf("new text: %+v, want audio and no URL", r)
	}
	if r := synthesize(t, s, `{"text":"cached"}`); !r.Cached || r.URL == "" || p.calls.Load() != 2 {
		t.Errorf("cached text: %+v with %d calls, want a cached response with 2", r, p.calls.Load())
	}
}
