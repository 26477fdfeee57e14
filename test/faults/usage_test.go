package faults

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime"
	"telapi/callruntime/wire"
	"telapi/internal/usage"
	"telapi/test/boot"
	"telapi/test/poll"
	"telapi/test/servers"
	"telapi/test/talk"
)

// spoken adds up what a runtime reported.
type spoken struct {
	mu    sync.Mutex
	total usage.Counts
}

// speak reports one text, more than once where the answer is taken for lost.
func (s *spoken) speak(ctx context.Context, t *testing.T, rt *callruntime.Runtime, team string) {
	report := wire.SpeechReport{ID: uuid.NewString(), TeamID: team, Characters: 1 + rand.Int64N(500), Cached: rand.IntN(3) == 0, At: time.Now().UnixMilli(),
		Voice: []string{"anna", "zoe"}[rand.IntN(2)], Provider: "tone"}
	for range 1 + rand.IntN(2) {
		if err := rt.ReportSpeech(ctx, report); err != nil {
			t.Error(err)
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Requests++
	s.total.Characters += report.Characters
	if report.Cached {
		s.total.Cached += report.Characters
	} else {
		s.total.Billed += report.Characters
	}
}

// settles waits until the account is what was spoken, and sees that it stays so.
func (s *spoken) settles(t *testing.T, p *place) {
	t.Helper()
	var got usage.Report
	yesterday := time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly) // of a month that may be over
	ask := func() usage.Counts {
		status, _, body := ask(t, p.Instance, http.MethodGet, "/api/v1/usage/tts-characters?groupBy=voice&from="+yesterday, "X-API-Key", p.apiKey)
		if status == http.StatusOK {
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatal(err)
			}
		}
		return got.Total
	}
	for deadline := time.Now().Add(time.Minute); ask() != s.total || !metric(t, p.Instance, "telapi_usage_reports_waiting 0"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the account is %+v, spoken was %+v", got.Total, s.total)
		}
	}
	if len(got.Buckets) == 0 || *got.Buckets[0].Group != "anna" {
		t.Errorf("buckets: %+v", got.Buckets)
	}
}

func integer(m rueidis.RedisMessage, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return m.AsInt64()
}

// metricOver tells whether a metric is above n.
func metricOver(t *testing.T, p *place, name string, n float64) bool {
	t.Helper()
	_, _, body := ask(t, p.Instance, http.MethodGet, "/metrics")
	_, rest, _ := strings.Cut(body, "\n"+name)
	var value float64
	_, _ = fmt.Sscan(rest, &value)
	return value > n
}

func TestUsageReportsAreCountedOnce(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		rt, s := talk.StartRuntime(t, p.env), &spoken{}
		var runtimes sync.WaitGroup
		for range 4 {
			runtimes.Go(func() {
				for range 150 {
					s.speak(t.Context(), t, rt, p.team)
				}
			})
		}
		runtimes.Wait()
		s.settles(t, p)
		if err := rt.ReportSpeech(t.Context(), wire.SpeechReport{TeamID: p.team, Characters: 1, At: 1}); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, "a report from 1970 is refused", func() bool {
			return metric(t, p.Instance, `telapi_usage_reports_total{outcome="refused"} 1`) && p.Log.Has("usage report rejected")
		})
		s.settles(t, p)
	})
}

// An instance is killed when it has read reports and not committed them, or
// committed and not settled them. Another takes them up.
func TestUsageSurvivesKilledInstance(t *testing.T) {
	for name, committed := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, redis := realStores(t)
			p := newPlace(t, env)
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			rt, s := talk.StartRuntime(t, env), &spoken{}
			for range 50 {
				s.speak(t.Context(), t, rt, p.team)
			}
			db, err := sql.Open("pgx", env["DATABASE_URL"])
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			lock, err := db.BeginTx(t.Context(), nil)
			if err == nil {
				_, err = lock.ExecContext(t.Context(), "LOCK TABLE tts_usage IN SHARE MODE") // to be read, and not written
			}
			if err != nil {
				t.Fatal(err)
			}
			_, victim := serve(t, env)
			reported, _ := integer(redis.Do("XLEN", "telapi:usage"))
			poll.Until(t, "all reports are read, and not committed", func() bool {
				pending, err := redis.Do("XPENDING", "telapi:usage", "accounts", "-", "+", "1000")
				if err != nil {
					return false
				}
				list, err := pending.ToArray()
				return err == nil && int64(len(list)) == reported
			})
			if committed {
				redis.MustDo("CLIENT", "PAUSE", "60000", "WRITE")
				_ = lock.Rollback()
				poll.Until(t, "the commit", func() (done bool) {
					_ = db.QueryRowContext(t.Context(), "SELECT COUNT(*) > 0 FROM tts_usage").Scan(&done)
					return done
				})
			}
			_ = victim.Cmd.Process.Kill()
			if !victim.Ended(10 * time.Second) {
				t.Fatal("the victim lives")
			}
			_ = lock.Rollback()
			redis.MustDo("CLIENT", "UNPAUSE")
			if left, err := integer(redis.Do("XLEN", "telapi:usage")); left != reported {
				t.Fatalf("%d of %d reports are left to take up, %v", left, reported, err)
			}
			p.Instance = p.twin(t)
			poll.Until(t, "all reports are taken up", func() bool {
				left, err := integer(redis.Do("XLEN", "telapi:usage"))
				return err == nil && left == 0
			})
			s.settles(t, p)
			if committed != metricOver(t, p, `telapi_usage_reports_total{outcome="repeated"} `, 50) {
				t.Error("the victim died elsewhere")
			}
		})
	}
}

// One of two instances is killed again and again while runtimes report.
func TestUsageSurvivesRepeatedKills(t *testing.T) {
	t.Parallel()
	env, _ := realStores(t)
	p := newPlace(t, env)
	rt, s := talk.StartRuntime(t, env), &spoken{}
	ctx, stop := context.WithCancel(t.Context())
	var runtimes sync.WaitGroup
	for range 2 {
		runtimes.Go(func() {
			for ctx.Err() == nil {
				s.speak(t.Context(), t, rt, p.team)
			}
		})
	}
	for range 5 {
		_, victim := serve(t, env)
		time.Sleep(rand.N(200 * time.Millisecond)) // in the midst of whatever it does
		_ = victim.Cmd.Process.Kill()
		victim.Ended(10 * time.Second)
	}
	stop()
	runtimes.Wait()
	t.Logf("%d texts were reported", s.total.Requests)
	s.settles(t, p)
}

func TestUsageSurvivesDatabaseOutage(t *testing.T) {
	t.Parallel()
	postgres, redis := servers.StartPostgres(t, servers.PostgresOptions{}), servers.StartRedis(t)
	env := boot.Env{"DATABASE_URL": postgres.URL(), "REDIS_URL": redis.URL()}
	p := newPlace(t, env)
	rt, s := talk.StartRuntime(t, env), &spoken{}
	for _, away := range []func(){postgres.Stop, postgres.Crash} {
		for range 200 {
			s.speak(t.Context(), t, rt, p.team)
		}
		away()
		for range 800 {
			s.speak(t.Context(), t, rt, p.team)
		}
		poll.Until(t, "the database is missed", func() bool {
			status, _, _ := ask(t, p.Instance, http.MethodGet, "/health")
			return status == http.StatusServiceUnavailable
		})
		postgres.Start(t)
		s.settles(t, p)
	}
}
