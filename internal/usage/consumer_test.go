package usage

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
	dto "github.com/prometheus/client_model/go"

	"telapi/callruntime/wire"
	"telapi/internal/fault"
)

var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

const someID = "0192d0c2-7b6e-4c1a-9f6f-0a1d2b4c5d6e"

func TestParseReport(t *testing.T) {
	report := func(members string) string {
		return fmt.Sprintf(`{"id":%q,"teamId":"tm_1","characters":12,"at":%d%s}`, someID, noon.UnixMilli(), members)
	}
	least := wire.SpeechReport{ID: someID, TeamID: "tm_1", Characters: 12, At: noon.UnixMilli()}
	for name, tt := range map[string]struct {
		report string
		want   wire.SpeechReport
	}{
		"the least there is": {report(""), least},
		"all of it, from a cache": {report(`,"endpointId":"ep_1","provider":"openai","voice":"änna","model":"m","cached":true,"later":{}`),
			wire.SpeechReport{ID: someID, TeamID: "tm_1", EndpointID: "ep_1", Provider: "openai", Voice: "änna", Model: "m", Characters: 12, Cached: true, At: noon.UnixMilli()}},
		"an id in capitals is the same id": {strings.Replace(report(""), someID, strings.ToUpper(someID), 1), least},
	} {
		if got, err := parseReport([]byte(tt.report), noon); err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, tt.want)
		}
	}
}

func TestParseReportRejectsInvalidReports(t *testing.T) {
	for name, tt := range map[string]struct{ old, replacement, want string }{
		"no JSON":         {`{`, `<`, "invalid report"},
		"two values":      {`}`, `}{}`, "invalid report"},
		"a member twice":  {`{`, `{"id":"x",`, "invalid report"},
		"not UTF-8":       {`tm_1`, "tm_\xff", "invalid report"},
		"no uuid":         {someID, "1", "id is not a UUID"},
		"no team":         {`tm_1`, ``, "teamId is missing"},
		"a team with NUL": {`tm_1`, `tm\u0000`, "NUL"},
		"a novel":         {`tm_1`, strings.Repeat("x", 257), "longer than 256"},
		"nothing spoken":  {`:12,`, `:0,`, "characters must be"},
		"less":            {`:12,`, `:-5,`, "characters must be"},
		"too much":        {`:12,`, `:10000001,`, "characters must be"},
		"half of one":     {`:12,`, `:1.5,`, "invalid report"},
		"long ago":        {fmt.Sprint(noon.UnixMilli()), fmt.Sprint(noon.Add(-maxAge - 1e6).UnixMilli()), "7 days ago"},
		"no time":         {fmt.Sprint(noon.UnixMilli()), "0", "7 days ago"},
		"tomorrow":        {fmt.Sprint(noon.UnixMilli()), fmt.Sprint(noon.Add(maxAhead + 1e6).UnixMilli()), "in the future"},
		"the end of time": {fmt.Sprint(noon.UnixMilli()), "9223372036854775807", "in the future"},
	} {
		report := strings.Replace(fmt.Sprintf(`{"id":%q,"teamId":"tm_1","characters":12,"at":%d}`, someID, noon.UnixMilli()), tt.old, tt.replacement, 1)
		if got, err := parseReport([]byte(report), noon); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, tt.want)
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
			t.Fatalf("%s: %+v", report, r)
		}
	})
}

// stores are a stream and books in memory, either of which can be away.
type stores struct {
	mu       sync.Mutex
	away     error // of the stream
	lost     bool  // the account is away
	poison   string
	stream   [][]byte
	taken    int
	refused  []string
	counted  map[string]int64
	attempts int
}

func (s *stores) lock() func() { s.mu.Lock(); return s.mu.Unlock }

func (s *stores) Append(_ context.Context, reports ...[]byte) error {
	defer s.lock()()
	if s.away == nil {
		s.stream = append(s.stream, reports...)
	}
	return s.away
}

func (s *stores) Read(ctx context.Context, limit int, wait time.Duration) (found []ReportEntry, err error) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	defer s.lock()()
	for ; s.away == nil && s.taken < len(s.stream) && len(found) < limit; s.taken++ {
		found = append(found, ReportEntry{fmt.Sprint(s.taken), s.stream[s.taken]})
	}
	return found, s.away
}

func (s *stores) Ack(_ context.Context, d []ReportEntry) error { defer s.lock()(); return s.away }
func (s *stores) Len(context.Context) (int64, error)           { return 7, nil }

func (s *stores) Reject(_ context.Context, _ ReportEntry, reason string) error {
	defer s.lock()()
	s.refused = append(s.refused, reason)
	return nil
}

func (s *stores) AddReports(_ context.Context, reports []wire.SpeechReport, _ time.Time) (n int, err error) {
	defer s.lock()()
	s.attempts++
	if s.lost {
		return 0, fault.Unavailable("The database", errors.New("gone"))
	}
	for _, r := range reports {
		if s.poison != "" && r.Voice == s.poison {
			return 0, errors.New("out of range")
		}
	}
	for _, r := range reports {
		if _, known := s.counted[r.ID]; !known {
			s.counted[r.ID] = r.Characters
			n++
		}
	}
	return n, nil
}

func (s *stores) DeleteReports(context.Context, time.Time) error { return nil }

// keepBooks runs a recorder and a consumer in a bubble.
func keepBooks(t *testing.T, try func(s *stores, r *Recorder, b *Consumer)) {
	synctest.Test(t, func(t *testing.T) {
		s, reg, log := &stores{counted: map[string]int64{}}, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
		r, b := NewRecorder(s, log, reg), NewConsumer(s, s, log, reg, time.Now)
		ctx, stop := context.WithCancel(t.Context())
		var jobs sync.WaitGroup
		jobs.Go(func() { r.Run(ctx) })
		jobs.Go(func() { b.Run(ctx) })
		try(s, r, b)
		stop()
		jobs.Wait()
	})
}

func speak(r *Recorder, voice string, characters int64) {
	r.Record(context.Background(), wire.SpeechReport{TeamID: "tm_1", Voice: voice, Characters: characters, At: time.Now().UnixMilli()})
}

func (s *stores) sum() (n int64) {
	defer s.lock()()
	for _, c := range slices.Collect(maps.Values(s.counted)) {
		n += c
	}
	return n
}

func value(m prometheus.Metric) float64 {
	var d dto.Metric
	_ = m.Write(&d)
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}

func TestReportsSurviveOutages(t *testing.T) {
	keepBooks(t, func(s *stores, r *Recorder, _ *Consumer) {
		set := func(away error, lost bool) { defer s.lock()(); s.away, s.lost = away, lost }
		want := int64(0)
		for i, outage := range []func(){
			func() {},
			func() { set(fault.Unavailable("The key-value store", nil), false) },
			func() { set(nil, true) },
			func() { set(fault.Unavailable("The key-value store", nil), true) },
		} {
			outage()
			for n := range int64(1200) {
				speak(r, "", n+1)
				want += n + 1
			}
			time.Sleep(time.Hour)
			set(nil, false)
			time.Sleep(time.Minute)
			if got := s.sum(); got != want {
				t.Errorf("after outage %d: %d of %d characters", i, got, want)
			}
		}
		if n := value(r.lost); n != 0 {
			t.Errorf("%v were lost", n)
		}
	})
}

func TestReportsAreCountedBeforeShutdown(t *testing.T) {
	var s *stores
	keepBooks(t, func(all *stores, r *Recorder, _ *Consumer) {
		s = all
		for range 3 * batchSize {
			speak(r, "", 1)
		}
	})
	if got := s.sum(); got != 3*batchSize {
		t.Errorf("%d of %d characters", got, 3*batchSize)
	}
}

func TestInvalidReportDoesNotBlockOthers(t *testing.T) {
	keepBooks(t, func(s *stores, r *Recorder, b *Consumer) {
		s.poison = "poison"
		speak(r, "a", 1)
		_ = s.Append(t.Context(), []byte("rubbish"))
		speak(r, "poison", 10)
		speak(r, "b", 100)
		time.Sleep(time.Minute)
		if s.sum() != 101 || len(s.refused) != 2 || !strings.HasPrefix(s.refused[0], "invalid report") || s.refused[1] != "out of range" {
			t.Errorf("%d characters, refused %v", s.sum(), s.refused)
		}
		if counted, refused := value(b.outcomes.WithLabelValues("counted")), value(b.outcomes.WithLabelValues("refused")); counted != 2 || refused != 2 || value(b.waiting) != 7 {
			t.Errorf("%v counted, %v refused, %v waiting", counted, refused, value(b.waiting))
		}
	})
}

func TestQueueIsBoundedAndLossIsCounted(t *testing.T) {
	keepBooks(t, func(s *stores, r *Recorder, _ *Consumer) {
		s.away = fault.Unavailable("The key-value store", nil)
		for range maxQueued + 3 {
			speak(r, "", 1)
		}
		if n := value(r.lost); n != 3 {
			t.Errorf("%v were lost, want those over the bound", n)
		}
	})
}
