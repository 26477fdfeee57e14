package speech_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
	"telapi/internal/speech"
	"telapi/test/testkit"
)

func TestRepeatedRequestIsServedFromCache(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	first := synthesize(t, s, `{"text":"Grüße","endpointId":"ep_1"}`)
	second := synthesize(t, s, `{"text":"Grüße"}`)
	if first.Cached || !second.Cached || first.Hash != second.Hash || first.URL != second.URL || first.Audio != nil || first.Characters != 5 || first.Provider != "primary" {
		t.Errorf("first response %+v, second %+v; want the same URL, only the second cached", first, second)
	}
	if sound := e.play(t, s, second.URL); len(sound) != 100*len("Grüße") {
		t.Errorf("%d bytes of A-law, want %d", len(sound), 100*len("Grüße"))
	}
	want := []wire.SpeechReport{
		{TeamID: "t1", EndpointID: "ep_1", Provider: "primary", Voice: "primary-voice", Characters: 5, At: e.now().UnixMilli()},
		{TeamID: "t1", Provider: "primary", Voice: "primary-voice", Characters: 5, Cached: true, At: e.now().UnixMilli()},
	}
	if reports, _ := e.reported(); p.calls.Load() != 1 || fmt.Sprint(reports) != fmt.Sprint(want) {
		t.Errorf("%d calls, want 1; reports\n%v, want\n%v", p.calls.Load(), reports, want)
	}
	testkit.WantFault(t, "endpoint of another team", testkit.ErrorOf(s.Synthesize(t.Context(), "t1", []byte(`{"text":"x","endpointId":"ep_other"}`))), fault.NotFound)
}

func TestDisabledCacheIsNeitherReadNorWritten(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	for range 2 {
		r := synthesize(t, s, `{"text":"abc","disableCache":true,"ttl":60}`)
		if r.Cached || r.URL != "" || len(r.Audio) != 300 || !r.ExpiresAt.IsZero() {
			t.Errorf("response %+v, want 300 bytes of audio and no URL", r)
		}
	}
	synthesize(t, s, `{"text":"abc"}`)
	synthesize(t, s, `{"text":"abc","disableCache":true}`)
	if p.calls.Load() != 4 || e.billed() != 12 || len(e.blobs.Paths()) != 1 {
		t.Errorf("%d calls, %d characters billed, blobs %v; want 4, 12 and one blob", p.calls.Load(), e.billed(), e.blobs.Paths())
	}
}

func TestALawIsTranscodedFromPCMAndNotBilled(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	pcm := synthesize(t, s, `{"text":"abc","encoding":"pcm"}`)
	alaw := synthesize(t, s, `{"text":"abc","encoding":"alaw"}`)
	if !alaw.Cached || alaw.Hash != pcm.Hash || p.calls.Load() != 1 || e.billed() != 3 || len(e.blobs.Paths()) != 2 {
		t.Errorf("A-law %+v after PCM %+v with %d calls, %d billed, blobs %v; want a cached response, 1 call, 3 billed, 2 blobs", alaw, pcm, p.calls.Load(), e.billed(), e.blobs.Paths())
	}
	if want := speech.DecodePCM(8000, e.play(t, s, pcm.URL)).ALaw(); !bytes.Equal(e.play(t, s, alaw.URL), want) {
		t.Error("the A-law variant differs from the PCM variant")
	}
	// PCM is not created from A-law, which is lossy.
	synthesize(t, s, `{"text":"xyz","encoding":"alaw"}`)
	if r := synthesize(t, s, `{"text":"xyz","encoding":"pcm"}`); r.Cached || p.calls.Load() != 3 {
		t.Errorf("PCM after A-law: %+v with %d calls, want a third synthesis", r, p.calls.Load())
	}
	if r := synthesize(t, s, `{"text":"abc","encoding":"pcm","sampleRate":16000}`); r.Cached || r.Hash == pcm.Hash || len(e.play(t, s, r.URL)) != 2*600 {
		t.Errorf("another sample rate: %+v, want a new recording of 1200 bytes", r)
	}
}

func TestAudioOfAnotherTeamIsNotFound(t *testing.T) {
	e := newEnv(t)
	s := e.service(t, &provider{name: "primary"})
	r := synthesize(t, s, `{"text":"abc"}`)
	for _, tt := range []struct{ team, name string }{
		{"t2", r.Hash + ".alaw"}, {"", r.Hash + ".alaw"}, {"t1", r.Hash + ".pcm"}, {"t1", r.Hash}, {"t1", "../" + r.Hash + ".alaw"},
	} {
		testkit.WantFault(t, fmt.Sprintf("team %q, %s", tt.team, tt.name), testkit.ErrorOf(s.Open(t.Context(), tt.team, tt.name)), fault.NotFound)
	}
	other, err := s.Synthesize(t.Context(), "t2", []byte(`{"text":"abc"}`))
	if err != nil || other.Cached || other.Hash == r.Hash {
		t.Errorf("same text of another team: %+v, %v; want another recording", other, err)
	}
}

func TestDamagedBlobIsDeletedAndSynthesizedAgain(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	good := synthesize(t, s, `{"text":"abc"}`)
	path := e.blobs.Paths()[0]
	sound := e.play(t, s, good.URL)
	set := func(content string) func() { return func() { e.blobs.Set(path, []byte(content), e.now()) } }
	for name, damage := range map[string]func(){
		"changed":   set("A" + string(sound[1:])),
		"truncated": set(string(sound[:9])),
		"longer":    set(string(sound) + "x"),
		"empty":     set(""),
		"missing":   func() { e.blobs.Delete(path) },
	} {
		damage()
		if name == "changed" || name == "longer" { // playing it fails before the end
			if got, err := io.ReadAll(e.open(t, s, good.URL)); !errors.Is(err, speech.ErrDamaged) || len(got) >= len(sound) {
				t.Errorf("%s: played %d of %d bytes, %v; want fewer and ErrDamaged", name, len(got), len(sound), err)
			}
			if left := e.blobs.Paths(); len(left) > 0 {
				t.Errorf("%s: blobs %v remain, want none", name, left)
			}
		}
		if again := synthesize(t, s, `{"text":"abc"}`); again.Cached || again.URL != good.URL || !bytes.Equal(e.play(t, s, again.URL), sound) {
			t.Errorf("%s: response %+v, want the same audio synthesized again", name, again)
		}
		if !synthesize(t, s, `{"text":"abc"}`).Cached {
			t.Errorf("%s: not cached again", name)
		}
	}
}

func TestMissingBlobIsReportedAsNotFoundAndDeleted(t *testing.T) {
	e := newEnv(t)
	s := e.service(t, &provider{name: "primary"})
	r := synthesize(t, s, `{"text":"abc"}`)
	name := r.URL[len(speech.Route)+1:]
	p, err := s.Open(t.Context(), "t1", name)
	testkit.Must(t, err)
	testkit.WantFault(t, "error of a missing blob", p.Failed(t.Context(), speech.ErrBlobNotFound), fault.NotFound)
	testkit.WantFault(t, "open after the deletion", testkit.ErrorOf(s.Open(t.Context(), "t1", name)), fault.NotFound)
}

// A slow client may reach the end of a damaged blob after it was replaced.
func TestReplacedBlobIsNotDeletedAsDamaged(t *testing.T) {
	e := newEnv(t)
	s := e.service(t, &provider{name: "primary"})
	url := synthesize(t, s, `{"text":"abc"}`).URL
	e.blobs.Set(e.blobs.Paths()[0], []byte("damaged"), e.now())
	slow := e.open(t, s, url)
	if r := synthesize(t, s, `{"text":"abc"}`); r.Cached || r.URL != url {
		t.Fatalf("response %+v, want a new synthesis with the same URL", r)
	}
	testkit.WantError(t, "slow client", testkit.ErrorOf(io.ReadAll(slow)), speech.ErrDamaged)
	e.play(t, s, url)
	if r := synthesize(t, s, `{"text":"abc"}`); !r.Cached {
		t.Errorf("response %+v, want the replaced blob from the cache", r)
	}
}

func TestExpiredSpeechIsSynthesizedAgain(t *testing.T) {
	e, p := newEnv(t), &provider{name: "primary"}
	s := e.service(t, p)
	first := synthesize(t, s, `{"text":"abc","ttl":60}`)
	if !first.ExpiresAt.Equal(e.now().Add(time.Minute)) {
		t.Errorf("expires at %v, want %v", first.ExpiresAt, e.now().Add(time.Minute))
	}
	e.advance(59 * time.Second)
	if p, err := s.Open(t.Context(), "t1", first.Hash+".alaw"); err != nil || !p.ExpiresAt.Equal(first.ExpiresAt) {
		t.Errorf("open before expiry: expires at %v, %v; want %v", p.ExpiresAt, err, first.ExpiresAt)
	}
	if r := synthesize(t, s, `{"text":"abc","ttl":1}`); !r.Cached || !r.ExpiresAt.Equal(first.ExpiresAt) {
		t.Errorf("before expiry: %+v, want a cached response with the first expiry", r)
	}
	e.advance(time.Second)
	testkit.WantFault(t, "open after expiry", testkit.ErrorOf(s.Open(t.Context(), "t1", first.Hash+".alaw")), fault.NotFound)
	if r := synthesize(t, s, `{"text":"abc"}`); r.Cached || !r.ExpiresAt.IsZero() {
		t.Errorf("after expiry: %+v, want a new synthesis without expiry", r)
	}
}

// A synthesis may take longer than its TTL.
func TestTTLStartsAfterSynthesis(t *testing.T) {
	e := newEnv(t)
	s := e.service(t, &provider{name: "primary", delay: func() { e.advance(5 * time.Second) }})
	r := synthesize(t, s, `{"text":"abc","ttl":2}`)
	if !r.ExpiresAt.Equal(e.now().Add(2 * time.Second)) {
		t.Errorf("expires at %v, want %v", r.ExpiresAt, e.now().Add(2*time.Second))
	}
	e.play(t, s, r.URL)
	if r := synthesize(t, s, `{"text":"abc","encoding":"pcm"}`); r.ExpiresAt.IsZero() { // the A-law variant has expired
		e.play(t, s, r.URL)
	} else {
		t.Errorf("next to an expired variant: expires at %v, want never", r.ExpiresAt)
	}
	s.Blobs = &hookedBlobs{e.blobs, func(operation, _ string, _ []byte) error {
		if operation == "put" {
			e.advance(3 * time.Second)
		}
		return nil
	}}
	if r := synthesize(t, s, `{"text":"def","ttl":2}`); r.URL != "" || len(r.Audio) == 0 || !r.ExpiresAt.IsZero() {
		t.Errorf("expired before it was stored: %+v, want audio without URL and expiry", r)
	}
}

// A request for cached speech keeps it for another retention. It costs one update per
// hour at most, and none for speech with an expiry.
func TestRequestsForSpeechAreRecorded(t *testing.T) {
	e := newEnv(t)
	s := e.service(t, &provider{name: "p"})
	kept := synthesize(t, s, `{"text":"a"}`)
	expiring := synthesize(t, s, `{"text":"b","ttl":1000000}`)
	created := e.now()
	for _, request := range []func(){
		func() { synthesize(t, s, `{"text":"a"}`); synthesize(t, s, `{"text":"b"}`) },
		func() { e.play(t, s, kept.URL); e.play(t, s, expiring.URL) },
	} {
		e.advance(speech.TouchInterval - time.Second)
		request() // too early to be recorded
		before := e.usedAt(t, kept)
		e.advance(time.Second)
		request()
		if got := e.usedAt(t, kept); !before.Equal(e.now().Add(-speech.TouchInterval)) || !got.Equal(e.now()) {
			t.Errorf("last use is %s after %s, want %s", got, before, e.now())
		}
	}
	if got := e.usedAt(t, expiring); !got.Equal(created) {
		t.Errorf("last use of speech with an expiry is %s, want it unchanged: %s", got, created)
	}
}

func (e *env) usedAt(t *testing.T, r speech.Response) time.Time {
	t.Helper()
	rec, err := e.Recording(t.Context(), r.Hash)
	testkit.Must(t, err)
	return rec.UsedAt
}

// Long texts wait until there is memory for their audio. A request that waits too long
// gets 503 and is not billed.
func TestSpeechWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t)
		p := &provider{name: "p", gate: make(chan struct{})}
		s := e.service(t, p)
		long := strings.Repeat("a", speech.MaxCharacters)
		var requests sync.WaitGroup
		request := func(n int, teamID string, patience time.Duration, want fault.Code) {
			requests.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				body := fmt.Sprintf(`{"text":%q,"speed":%g,"disableCache":%v}`, long, 1+float64(n)/10, n%2 == 0)
				if _, err := s.Synthesize(ctx, teamID, []byte(body)); !fault.Is(err, want) || fault.From(err).RetryAfter == 0 {
					t.Errorf("request %d of %s: %v, want %s with Retry-After", n, teamID, err, want)
				}
			})
			synctest.Wait()
		}
		expect := func(want int64) {
			t.Helper()
			testkit.Equal(t, "texts are synthesized at a time", p.calls.Load(), want)
		}
		const always, short = time.Hour, 10 * time.Second
		request(0, "t1", always, fault.ServiceUnavailable) // the provider times out
		request(1, "t1", always, fault.ServiceUnavailable)
		request(2, "t1", short, fault.RateLimitExceeded) // waits for the share of its team
		expect(2)
		request(3, "t2", always, fault.ServiceUnavailable)
		request(4, "t2", always, fault.ServiceUnavailable)
		expect(4)
		request(6, "t3", short, fault.ServiceUnavailable) // waits for any other
		expect(4)
		requests.Wait() // all time out
		close(p.gate)
		synthesize(t, s, `{"text":"after the others"}`)
		testkit.Equal(t, "characters billed", e.billed(), 16)
	})
}
