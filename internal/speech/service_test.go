package speech

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"telapi/callruntime/wire"
	"telapi/internal/audio"
	"telapi/internal/fault"
)

func TestSecondRequestIsAnsweredFromTheCache(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary"}
	s := w.service(t, p)
	first := speak(t, s, `{"text":"Grüße","endpointId":"ep_1"}`)
	again := speak(t, s, `{"text":"Grüße"}`)
	if first.Cached || !again.Cached || first.Hash != again.Hash || first.URL != again.URL || first.Audio != nil || first.Characters != 5 || first.Provider != "primary" {
		t.Errorf("%+v, then %+v", first, again)
	}
	if sound := listen(t, s, again.URL); len(sound) != 100*len("Grüße") {
		t.Errorf("%d bytes of A-law", len(sound))
	}
	want := []wire.SpeechReport{
		{TeamID: "t1", EndpointID: "ep_1", Provider: "primary", Voice: "primary-voice", Characters: 5, At: w.now().UnixMilli()},
		{TeamID: "t1", Provider: "primary", Voice: "primary-voice", Characters: 5, Cached: true, At: w.now().UnixMilli()},
	}
	if p.said.Load() != 1 || fmt.Sprint(w.entries) != fmt.Sprint(want) {
		t.Errorf("said %d times, counted\n%v, want\n%v", p.said.Load(), w.entries, want)
	}
	if _, err := s.Synthesize(t.Context(), "t1", []byte(`{"text":"x","endpointId":"ep_other"}`)); !fault.Is(err, fault.NotFound) {
		t.Errorf("a foreign endpoint: %v", err)
	}
}

func TestSimultaneousRequestsCostOneSynthesis(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary", gate: make(chan struct{})}
	instances := []*Service{w.service(t, p), w.service(t, p), w.service(t, p)}
	var wg sync.WaitGroup
	var billed atomic.Int64
	for i := range 99 {
		wg.Go(func() {
			a, err := instances[i%3].Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`))
			if err != nil || a.URL == "" {
				t.Errorf("%+v, %v", a, err)
			}
			if !a.Cached {
				billed.Add(1)
			}
		})
	}
	for p.said.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(p.gate)
	wg.Wait()
	if p.said.Load() != 1 || billed.Load() != 1 || w.counted() != 99 || w.billed() != 3 {
		t.Errorf("said %d times, %d billed, %d counted", p.said.Load(), billed.Load(), w.counted())
	}
}

func TestWhoeverAskedFirstMayLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p := newWorld(), &voice{name: "primary", gate: make(chan struct{})}
		s := w.service(t, p)
		ctx, leave := context.WithCancel(t.Context())
		first := make(chan error)
		go func() { _, err := s.Synthesize(ctx, "t1", []byte(`{"text":"abc"}`)); first <- err }()
		synctest.Wait()
		second := make(chan Response)
		go func() { a, _ := s.Synthesize(t.Context(), "t1", []byte(`{"text":"abc"}`)); second <- a }()
		synctest.Wait()
		leave()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("who left got %v", err)
		}
		close(p.gate)
		if a := <-second; !a.Cached || a.URL == "" || p.said.Load() != 1 || w.billed() != 3 {
			t.Errorf("who stayed got %+v; said %d times, %d billed", a, p.said.Load(), w.billed())
		}
	})
}

func TestWhoeverLeavesAnUncachedRequestHarmsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, p, next := newWorld(), &voice{name: "primary", gate: make(chan struct{})}, &voice{name: "next"}
		s := w.service(t, p, next)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := s.Synthesize(ctx, "t1", []byte(`{"text":"abc","disableCache":true}`)); left <- err }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) || next.said.Load() != 0 || w.billed() != 0 {
			t.Errorf("%v; the next provider was asked %d times, %d billed", err, next.said.Load(), w.billed())
		}
		var failed dto.Metric
		if err := s.metrics.syntheses.WithLabelValues("primary", "failed").Write(&failed); err != nil || failed.GetCounter().GetValue() != 0 {
			t.Errorf("%v, %v: it did not fail", &failed, err)
		}
		close(p.gate)
		if a := speak(t, s, `{"text":"abc"}`); a.Provider != "primary" {
			t.Errorf("the others are spoken to by %s", a.Provider)
		}
	})
}

func TestDisabledCacheIsNeitherReadNorWritten(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary"}
	s := w.service(t, p)
	for range 2 {
		a := speak(t, s, `{"text":"abc","disableCache":true,"ttl":60}`)
		if a.Cached || a.URL != "" || len(a.Audio) != 300 || !a.ExpiresAt.IsZero() {
			t.Errorf("%+v", a)
		}
	}
	speak(t, s, `{"text":"abc"}`)
	speak(t, s, `{"text":"abc","disableCache":true}`)
	if p.said.Load() != 4 || w.billed() != 12 || len(w.stored()) != 1 {
		t.Errorf("said %d times, %d billed, %v stored", p.said.Load(), w.billed(), w.stored())
	}
}

func TestMediaServiceThatIsAwayFailsNothing(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary"}
	s := w.service(t, p)
	speak(t, s, `{"text":"known"}`)
	w.setAway(true)
	for _, text := range []string{"known", "new", "known"} {
		if a := speak(t, s, `{"text":"`+text+`"}`); a.Cached || a.URL != "" || len(a.Audio) == 0 {
			t.Errorf("%s while it is away: %+v", text, a)
		}
	}
	if _, err := s.Open(t.Context(), "t1", w.stored()[0][3:], Conditions{}); !fault.Is(err, fault.ServiceUnavailable) || fault.From(err).RetryAfter == 0 {
		t.Errorf("reading while it is away: %v", err)
	}
	w.setAway(false)
	w.pass(awayTime)
	if a := speak(t, s, `{"text":"known"}`); !a.Cached || a.URL == "" {
		t.Errorf("known when it is back: %+v", a)
	}
	w.setAway(true)
	speak(t, s, `{"text":"known"}`)
	w.setAway(false)
	w.pass(-time.Hour)
	if a := speak(t, s, `{"text":"known"}`); !a.Cached || a.URL == "" {
		t.Errorf("known when it is back and the clock was set back: %+v", a)
	}
	if a := speak(t, s, `{"text":"new"}`); a.Cached || a.URL == "" {
		t.Errorf("new when it is back: %+v", a)
	}
	none := w.service(t, p)
	none.Blobs = nil
	if a := speak(t, none, `{"text":"known"}`); a.Cached || len(a.Audio) == 0 {
		t.Errorf("without a media service: %+v", a)
	}
	if _, err := none.Open(t.Context(), "t1", w.stored()[0][3:], Conditions{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("reading without a media service: %v", err)
	}
}

func TestOneSentenceThatTookTooLongHindersNoOther(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary"}
	s := w.service(t, p)
	late, end := context.WithCancel(t.Context())
	end()
	made := rendering{row: s.row(Request{Encoding: PCM, SampleRate: 8000}, p), audio: make([]byte, 16)}
	if s.keep(late, &made, PCM); made.stored {
		t.Error("it was kept in no time")
	}
	if a := speak(t, s, `{"text":"abc"}`); a.URL == "" {
		t.Errorf("the media service is taken for away: %+v", a)
	}
}

func TestOneSentenceTooLongToBeKeptHindersNoOther(t *testing.T) {
	w := newWorld()
	s := w.service(t, &voice{name: "primary"})
	if a := speak(t, s, `{"text":"`+strings.Repeat("long", 100)+`"}`); a.Cached || a.URL != "" || len(a.Audio) != 40_000 {
		t.Errorf("%+v", a)
	}
	if a := speak(t, s, `{"text":"short"}`); a.URL == "" {
		t.Errorf("%+v", a)
	}
}

// fullBlobs is a media service whose disk is full.
type fullBlobs struct{ *world }

func (fullBlobs) Put(context.Context, string, []byte) error { return ErrBlobRejected }

func TestWhatIsCachedIsNotBilledAgainBecauseNothingMoreIsKept(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary"}
	s := w.service(t, p)
	speak(t, s, `{"text":"cached"}`)
	s.Blobs = fullBlobs{w}
	if a := speak(t, s, `{"text":"new"}`); a.URL != "" || len(a.Audio) == 0 {
		t.Errorf("%+v", a)
	}
	if a := speak(t, s, `{"text":"cached"}`); !a.Cached || a.URL == "" || p.said.Load() != 2 {
		t.Errorf("%+v; the provider was asked %d times", a, p.said.Load())
	}
}

// A listener may take long to come to the end of a bad blob.
func TestWhatWasMadeAgainMeanwhileIsNotDropped(t *testing.T) {
	w := newWorld()
	s := w.service(t, &voice{name: "primary"})
	url := speak(t, s, `{"text":"abc"}`).URL
	w.damage(w.stored()[0], "no sound")
	slow, err := s.Open(t.Context(), "t1", url[len(Route)+1:], Conditions{})
	if err != nil {
		t.Fatal(err)
	}
	if a := speak(t, s, `{"text":"abc"}`); a.Cached || a.URL != url {
		t.Fatalf("%+v", a)
	}
	if _, err := io.ReadAll(slow.Body); !errors.Is(err, errDamaged) {
		t.Errorf("the slow listener: %v", err)
	}
	listen(t, s, url)
	if a := speak(t, s, `{"text":"abc"}`); !a.Cached {
		t.Errorf("%+v", a)
	}
}

func TestBadBlobIsDroppedAndMadeAgain(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary"}
	s := w.service(t, p)
	good := speak(t, s, `{"text":"abc"}`)
	path := w.stored()[0]
	sound := listen(t, s, good.URL)
	for what, spoil := range map[string]func(){
		"changed": func() { w.damage(path, "A"+string(sound[1:])) },
		"cut":     func() { w.damage(path, string(sound[:9])) },
		"longer":  func() { w.damage(path, string(sound)+"x") },
		"empty":   func() { w.damage(path, "") },
		"gone":    func() { w.Lock(); defer w.Unlock(); delete(w.blobs, path) },
	} {
		spoil()
		if what == "changed" || what == "longer" { // a listener notices before he has it all
			blob, err := s.Open(t.Context(), "t1", path[3:], Conditions{})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(blob.Body); err == nil || len(got) >= len(sound) {
				t.Errorf("%s: a listener got %d of %d bytes, %v", what, len(got), len(sound), err)
			}
			if left := w.stored(); len(left) > 0 {
				t.Errorf("%s: %v is still there", what, left)
			}
		}
		if again := speak(t, s, `{"text":"abc"}`); again.Cached || again.URL != good.URL || !bytes.Equal(listen(t, s, again.URL), sound) {
			t.Errorf("%s: %+v", what, again)
		}
		if !speak(t, s, `{"text":"abc"}`).Cached {
			t.Errorf("%s: not kept again", what)
		}
	}
}

func TestALawIsMadeFromPCMAndNotBilled(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary"}
	s := w.service(t, p)
	pcm := speak(t, s, `{"text":"abc","encoding":"pcm"}`)
	alaw := speak(t, s, `{"text":"abc","encoding":"alaw"}`)
	if !alaw.Cached || alaw.Hash != pcm.Hash || p.said.Load() != 1 || w.billed() != 3 || len(w.stored()) != 2 {
		t.Errorf("%+v after %+v; said %d times", alaw, pcm, p.said.Load())
	}
	if want := audio.FromPCM(8000, listen(t, s, pcm.URL)).ALaw(); !bytes.Equal(listen(t, s, alaw.URL), want) {
		t.Error("A-law is not that of the samples")
	}
	// The other way round something would be lost.
	speak(t, s, `{"text":"xyz","encoding":"alaw"}`)
	if a := speak(t, s, `{"text":"xyz","encoding":"pcm"}`); a.Cached || p.said.Load() != 3 {
		t.Errorf("samples made from A-law: %+v", a)
	}
	if a := speak(t, s, `{"text":"abc","encoding":"pcm","sampleRate":16000}`); a.Cached || a.Hash == pcm.Hash || len(listen(t, s, a.URL)) != 2*600 {
		t.Errorf("at another rate: %+v", a)
	}
}

func TestSpeechRunsOut(t *testing.T) {
	w, p := newWorld(), &voice{name: "primary"}
	s := w.service(t, p)
	first := speak(t, s, `{"text":"abc","ttl":60}`)
	if !first.ExpiresAt.Equal(w.now().Add(time.Minute)) {
		t.Errorf("expires at %v", first.ExpiresAt)
	}
	w.pass(59 * time.Second)
	blob, err := s.Open(t.Context(), "t1", first.Hash+".alaw", Conditions{})
	if err != nil || blob.Headers["Cache-Control"] != "private, max-age=1" {
		t.Errorf("read before its end: %v, %v", blob.Headers, err)
	}
	if a := speak(t, s, `{"text":"abc","ttl":1}`); !a.Cached || !a.ExpiresAt.Equal(first.ExpiresAt) {
		t.Errorf("before its end: %+v", a)
	}
	w.pass(time.Second)
	if _, err := s.Open(t.Context(), "t1", first.Hash+".alaw", Conditions{}); !fault.Is(err, fault.NotFound) {
		t.Errorf("read after its end: %v", err)
	}
	if a := speak(t, s, `{"text":"abc"}`); a.Cached || !a.ExpiresAt.IsZero() {
		t.Errorf("after its end: %+v", a)
	}
}

// slowBlobs is a media service that takes its time to answer.
type slowBlobs struct {
	*world
	takes time.Duration
}

func (b slowBlobs) Get(ctx context.Context, path string, ask Conditions) (Blob, error) {
	b.pass(b.takes)
	return b.world.Get(ctx, path, ask)
}

func (b slowBlobs) Put(ctx context.Context, path string, content []byte) error {
	b.pass(b.takes)
	return b.world.Put(ctx, path, content)
}

func TestNoAgeIsNegativeWhenSpeechRunsOutWhileItIsOpened(t *testing.T) {
	w := newWorld()
	s := w.service(t, &voice{name: "primary"})
	a := speak(t, s, `{"text":"abc","ttl":60}`)
	w.pass(59 * time.Second)
	s.Blobs = slowBlobs{w, 3 * time.Second}
	blob, err := s.Open(t.Context(), "t1", a.Hash+".alaw", Conditions{})
	if err != nil || blob.Headers["Cache-Control"] != "private, max-age=0" {
		t.Errorf("%v, %v", blob.Headers, err)
	}
}

// A sentence may take longer to make than it is to be kept.
func TestWhatIsKeptForAMomentIsThereWhenTheAnswerSaysSo(t *testing.T) {
	w := newWorld()
	slow := &voice{name: "primary", takes: func() { w.pass(5 * time.Second) }}
	s := w.service(t, slow)
	a := speak(t, s, `{"text":"abc","ttl":2}`)
	if !a.ExpiresAt.Equal(w.now().Add(2 * time.Second)) {
		t.Errorf("at %v it says %+v", w.now(), a)
	}
	listen(t, s, a.URL)
	if a := speak(t, s, `{"text":"abc","encoding":"pcm"}`); a.ExpiresAt.IsZero() { // the first ran out meanwhile
		listen(t, s, a.URL)
	} else {
		t.Errorf("beside what ran out: %+v", a)
	}
	s.Blobs = slowBlobs{w, 3 * time.Second}
	if a := speak(t, s, `{"text":"def","ttl":2}`); a.URL != "" || len(a.Audio) == 0 || !a.ExpiresAt.IsZero() {
		t.Errorf("over before it was stored: %+v", a)
	}
}

func TestForeignAudioIsNotFound(t *testing.T) {
	w := newWorld()
	s := w.service(t, &voice{name: "primary"})
	a := speak(t, s, `{"text":"abc"}`)
	for _, c := range [][2]string{{"t2", a.Hash + ".alaw"}, {"", a.Hash + ".alaw"}, {"t1", a.Hash + ".pcm"}, {"t1", a.Hash}, {"t1", "../" + a.Hash + ".alaw"}} {
		if _, err := s.Open(t.Context(), c[0], c[1], Conditions{}); !fault.Is(err, fault.NotFound) {
			t.Errorf("team %q, %s: %v", c[0], c[1], err)
		}
	}
	other, err := s.Synthesize(t.Context(), "t2", []byte(`{"text":"abc"}`))
	if err != nil || other.Cached || other.Hash == a.Hash {
		t.Errorf("another team's: %+v, %v", other, err)
	}
}
