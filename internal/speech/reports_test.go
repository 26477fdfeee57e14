package speech

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/callruntime/wire"
	"telapi/internal/background"
	"telapi/internal/fault"
	"telapi/test/testkit"
)

var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

const someID = "0192d0c2-7b6e-4c1a-9f6f-0a1d2b4c5d6e"

func TestParseReport(t *testing.T) {
	report := func(members string) string {
		return fmt.Sprintf(`{"id":%q,"teamId":"tm_1","characters":12,"at":%d%s}`, someID, noon.UnixMilli(), members)
	}
	minimal := wire.SpeechReport{ID: someID, TeamID: "tm_1", Characters: 12, At: noon.UnixMilli()}
	for name, tt := range map[string]struct {
		report string
		want   wire.SpeechReport
	}{
		"only required members": {report(""), minimal},
		"all members": {report(`,"endpointId":"ep_1","provider":"openai","voice":"änna","model":"m","cached":true,"later":{}`),
			wire.SpeechReport{ID: someID, TeamID: "tm_1", EndpointID: "ep_1", Provider: "openai", Voice: "änna", Model: "m", Characters: 12, Cached: true, At: noon.UnixMilli()}},
		"ID in capitals": {strings.Replace(report(""), someID, strings.ToUpper(someID), 1), minimal},
	} {
		if got, err := parseReport([]byte(tt.report), noon); err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, tt.want)
		}
	}
}

func TestParseReportRejectsInvalidReports(t *testing.T) {
	for name, tt := range map[string]struct{ old, replacement, want string }{ // old is replaced in a valid report
		"not JSON":                {`{`, `<`, "invalid report"},
		"two JSON values":         {`}`, `}{}`, "invalid report"},
		"duplicate member":        {`{`, `{"id":"x",`, "invalid report"},
		"not UTF-8":               {`tm_1`, "tm_\xff", "invalid report"},
		"ID is not a UUID":        {someID, "1", "/id: Must be a UUID"},
		"no team":                 {`tm_1`, ``, "teamId is required"},
		"team with NUL":           {`tm_1`, `tm\u0000`, "NUL"},
		"team too long":           {`tm_1`, strings.Repeat("x", 257), "at most 256"},
		"no characters":           {`:12,`, `:0,`, "/characters: Must be"},
		"negative characters":     {`:12,`, `:-5,`, "/characters: Must be"},
		"too many characters":     {`:12,`, `:10000001,`, "/characters: Must be"},
		"fraction of a character": {`:12,`, `:1.5,`, "invalid report"},
		"too old":                 {fmt.Sprint(noon.UnixMilli()), fmt.Sprint(noon.Add(-maxAge - 1e6).UnixMilli()), "7 days ago"},
		"no time":                 {fmt.Sprint(noon.UnixMilli()), "0", "7 days ago"},
		"in the future":           {fmt.Sprint(noon.UnixMilli()), fmt.Sprint(noon.Add(maxAhead + 1e6).UnixMilli()), "in the future"},
		"largest time":            {fmt.Sprint(noon.UnixMilli()), "9223372036854775807", "in the future"},
	} {
		report := strings.Replace(fmt.Sprintf(`{"id":%q,"teamId":"tm_1","characters":12,"at":%d}`, someID, noon.UnixMilli()), tt.old, tt.replacement, 1)
		if got, err := parseReport([]byte(report), noon); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %+v with error %v, want an error with %q", name, got, err, tt.want)
		}
	}
}

func FuzzParseReport(f *testing.F) {
	f.Add(fmt.Appendf(nil, `{"id":%q,"teamId":"tm_1","characters":12,"at":%d,"cached":true}`, someID, noon.UnixMilli()))
	f.Add([]byte(`{"id":null,"characters":1e300}`))
	f.Fuzz(func(t *testing.T, report []byte) {
		r, err := parseReport(report, noon)
		if err != nil {
			return
		}
		if r.TeamID == "" || r.Characters < 1 || noon.Sub(time.UnixMilli(r.At)).Abs() > maxAge || uuid.Validate(r.ID) != nil {
			t.Fatalf("accepted invalid report %s: %+v", report, r)
		}
	})
}

// fakeStores is a stream and a report store in memory. Both pass the tests of
// package conformance, and either can be unreachable.
type fakeStores struct {
	mu          sync.Mutex
	streamErr   error  // returned by the stream
	unreachable bool   // the report store
	badVoice    string // the report store rejects batches with this voice
	entries     []*fakeEntry
	appended    int   // entries, for IDs
	others      int64 // entries of other consumers
	rejected    []string
	counted     map[string]int64     // characters by report ID
	countedAt   map[string]time.Time // by report ID
}

type fakeEntry struct {
	ReportEntry
	readAt time.Time
}

// redeliverAfter is how long an entry may stay unacknowledged.
const redeliverAfter = time.Hour

func newFakeStores() *fakeStores {
	return &fakeStores{counted: map[string]int64{}, countedAt: map[string]time.Time{}}
}

// NewFakeReportStore returns the fake for conformance tests.
func NewFakeReportStore() ReportStore { return newFakeStores() }

// NewFakeStream returns the fake for conformance tests, and a function that lets
// all unacknowledged entries time out.
func NewFakeStream() (s ReportStream, timeOut func()) {
	f := newFakeStores()
	return f, func() {
		for _, e := range f.entries {
			e.readAt = time.Time{}
		}
	}
}

func (s *fakeStores) lock() func() { s.mu.Lock(); return s.mu.Unlock }

func (s *fakeStores) Append(_ context.Context, reports ...[]byte) error {
	defer s.lock()()
	if s.streamErr != nil {
		return s.streamErr
	}
	for _, r := range reports {
		s.appended++
		s.entries = append(s.entries, &fakeEntry{ReportEntry: ReportEntry{fmt.Sprint(s.appended), r}})
	}
	return nil
}

func (s *fakeStores) Read(ctx context.Context, limit int, wait time.Duration) (found []ReportEntry, err error) {
	_ = background.Sleep(ctx, wait)
	defer s.lock()()
	for _, e := range s.entries {
		if s.streamErr == nil && len(found) < limit && time.Since(e.readAt) > redeliverAfter {
			e.readAt = time.Now()
			found = append(found, e.ReportEntry)
		}
	}
	return found, s.streamErr
}

func (s *fakeStores) Ack(_ context.Context, acked []ReportEntry) error {
	defer s.lock()()
	if s.streamErr == nil {
		ids := map[string]bool{}
		for _, e := range acked {
			ids[e.ID] = true
		}
		s.entries = slices.DeleteFunc(s.entries, func(e *fakeEntry) bool { return ids[e.ID] })
	}
	return s.streamErr
}

func (s *fakeStores) Reject(ctx context.Context, e ReportEntry, reason string) error {
	unlock := s.lock()
	s.rejected = append(s.rejected, reason)
	unlock()
	return s.Ack(ctx, []ReportEntry{e})
}

func (s *fakeStores) Len(context.Context) (int64, error) {
	defer s.lock()()
	return int64(len(s.entries)) + s.others, nil
}

func (s *fakeStores) AddReports(_ context.Context, reports []wire.SpeechReport, now time.Time) (n int, err error) {
	defer s.lock()()
	if s.unreachable {
		return 0, fault.Unavailable("The database", errors.New("connection refused"))
	}
	for _, r := range reports {
		if s.badVoice != "" && r.Voice == s.badVoice {
			return 0, errors.New("out of range")
		}
	}
	for _, r := range reports {
		if _, known := s.counted[r.ID]; !known {
			s.counted[r.ID], s.countedAt[r.ID] = r.Characters, now
			n++
		}
	}
	return n, nil
}

func (s *fakeStores) DeleteReports(_ context.Context, before time.Time) error {
	defer s.lock()()
	maps.DeleteFunc(s.countedAt, func(id string, at time.Time) bool {
		if at.Before(before) {
			delete(s.counted, id)
			return true
		}
		return false
	})
	return nil
}

// runStores runs a reporter and a consumer in a synctest bubble.
func runStores(t *testing.T, try func(s *fakeStores, r *Reporter, c *ReportConsumer)) {
	synctest.Test(t, func(t *testing.T) {
		s, reg, log := newFakeStores(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
		r, c := NewReporter(s, log, reg), NewReportConsumer(s, s, log, reg, time.Now)
		ctx, stop := context.WithCancel(t.Context())
		var jobs sync.WaitGroup
		jobs.Go(func() { r.Run(ctx) })
		jobs.Go(func() { c.Run(ctx) })
		try(s, r, c)
		stop()
		jobs.Wait()
	})
}

// report reports one request of characters.
func report(r *Reporter, voice string, characters int64) {
	r.Report(context.Background(), wire.SpeechReport{TeamID: "tm_1", Voice: voice, Characters: characters, At: time.Now().UnixMilli()})
}

// sum returns the number of counted characters.
func (s *fakeStores) sum() (n int64) {
	defer s.lock()()
	for _, characters := range s.counted {
		n += characters
	}
	return n
}

func TestReportsSurviveOutages(t *testing.T) {
	runStores(t, func(s *fakeStores, r *Reporter, _ *ReportConsumer) {
		set := func(streamErr error, unreachable bool) {
			defer s.lock()()
			s.streamErr, s.unreachable = streamErr, unreachable
		}
		want := int64(0)
		for i, outage := range []func(){
			func() {},
			func() { set(fault.Unavailable("The key-value store", nil), false) },
			func() { set(nil, true) },
			func() { set(fault.Unavailable("The key-value store", nil), true) },
		} {
			outage()
			for n := range int64(1200) {
				report(r, "", n+1)
				want += n + 1
			}
			time.Sleep(time.Hour)
			set(nil, false)
			time.Sleep(time.Minute)
			testkit.Equal(t, fmt.Sprintf("after outage %d: counted characters", i), s.sum(), want)
		}
		testkit.Equal(t, "reports lost", testkit.MetricValue(t, r.lost), 0)
	})
}

func TestReportsAreCountedBeforeShutdown(t *testing.T) {
	var stores *fakeStores
	runStores(t, func(s *fakeStores, r *Reporter, _ *ReportConsumer) {
		stores = s
		for range 3 * batchSize {
			report(r, "", 1)
		}
	})
	testkit.Equal(t, "counted characters", stores.sum(), 3*batchSize)
}

func TestInvalidReportDoesNotBlockOthers(t *testing.T) {
	runStores(t, func(s *fakeStores, r *Reporter, c *ReportConsumer) {
		unlock := s.lock()
		s.badVoice, s.others = "poison", 7
		unlock()
		report(r, "a", 1)
		_ = s.Append(t.Context(), []byte("not JSON"))
		report(r, "poison", 10)
		report(r, "b", 100)
		time.Sleep(time.Minute)
		if s.sum() != 101 || len(s.rejected) != 2 || !strings.HasPrefix(s.rejected[0], "invalid report") || s.rejected[1] != "out of range" {
			t.Errorf("counted %d characters, want 101; rejected %q, want an invalid report and out of range", s.sum(), s.rejected)
		}
		if counted, rejected := testkit.MetricValue(t, c.outcomes.WithLabelValues("counted")), testkit.MetricValue(t, c.outcomes.WithLabelValues("rejected")); counted != 2 || rejected != 2 || testkit.MetricValue(t, c.waiting) != 7 {
			t.Errorf("metrics: %v counted, %v rejected, %v waiting; want 2, 2 and 7", counted, rejected, testkit.MetricValue(t, c.waiting))
		}
	})
}

func TestWaitingReportsAreMeasuredWithoutDatabase(t *testing.T) {
	runStores(t, func(s *fakeStores, r *Reporter, c *ReportConsumer) {
		unlock := s.lock()
		s.unreachable = true
		unlock()
		for want := 1; want <= 3; want++ {
			report(r, "", 1)
			time.Sleep(time.Minute)
			if got := testkit.MetricValue(t, c.waiting); got != float64(want) {
				t.Errorf("%v reports waiting, want %d", got, want)
			}
		}
		defer s.lock()()
		s.unreachable = false
	})
}

func TestQueueIsBoundedAndLossesAreCounted(t *testing.T) {
	runStores(t, func(s *fakeStores, r *Reporter, _ *ReportConsumer) {
		s.streamErr = fault.Unavailable("The key-value store", nil)
		for range maxQueued + 3 {
			report(r, "", 1)
		}
		testkit.Equal(t, "reports lost", testkit.MetricValue(t, r.lost), 3)
	})
}
