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

// reporter sends usage reports and adds up what it sent.
type reporter struct {
	mu    sync.Mutex
	total usage.Counts
}

// send sends a random report, sometimes twice as after a lost reply.
func (s *reporter) send(ctx context.Context, t *testing.T, rt *callruntime.Runtime, team string) {
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

// waitForTotal waits until all reports are processed and the usage is the total.
func (s *reporter) waitForTotal(t *testing.T, p *service) {
	t.Helper()
	var got usage.Summary
	yesterday := time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly) // the test may span the end of a month
	poll.Until(t, fmt.Sprintf("usage is %+v", s.total), func() bool {
		resp, body := p.Call(t, http.MethodGet, "/api/v1/usage/tts-characters?groupBy=voice&from="+yesterday, "X-API-Key", p.apiKey)
		if resp.StatusCode != http.StatusOK {
			return false
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		return got.Total == s.total && hasMetric(t, p.Instance, "telapi_usage_reports_waiting 0")
	})
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

// metricOver returns whether a metric is greater than n.
func metricOver(t *testing.T, p *service, name string, n float64) bool {
	t.Helper()
	_, body := p.Instance.Call(t, http.MethodGet, "/metrics")
	_, rest, _ := strings.Cut(body, "\n"+name)
	var value float64
	_, _ = fmt.Sscan(rest, &value)
	return value > n
}

func TestUsageReportsAreCountedOnce(t *testing.T) {
	onEmbeddedAndReal(t, nil, func(t *testing.T, p *service) {
		rt, s := talk.StartRuntime(t, p.env), &reporter{}
		var runtimes sync.WaitGroup
		for range 4 {
			runtimes.Go(func() {
				for range 150 {
					s.send(t.Context(), t, rt, p.team)
				}
			})
		}
		runtimes.Wait()
		s.waitForTotal(t, p)
		if err := rt.ReportSpeech(t.Context(), wire.SpeechReport{TeamID: p.team, Characters: 1, At: 1}); err != nil {
			t.Fatal(err)
		}
		poll.Until(t, "a report from 1970 is rejected", func() bool {
			return hasMetric(t, p.Instance, `telapi_usage_reports_total{outcome="refused"} 1`) && p.Log.Has("usage report rejected")
		})
		s.waitForTotal(t, p)
	})
}

// An instance is killed after it has read reports, before or after it commits them
// to the database. Another instance takes them over.
func TestUsageSurvivesKilledInstance(t *testing.T) {
	for name, committed := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, redis := boot.RealStores(t)
			p := startService(t, env)
			if err := p.Stop(); err != nil {
				t.Fatal(err)
			}
			rt, s := talk.StartRuntime(t, env), &reporter{}
			for range 50 {
				s.send(t.Context(), t, rt, p.team)
			}
			db, err := sql.Open("pgx", env["DATABASE_URL"])
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			lock, err := db.BeginTx(t.Context(), nil)
			if err == nil {
				_, err = lock.ExecContext(t.Context(), "LOCK TABLE tts_usage IN SHARE MODE") // allows reads, blocks writes
			}
			if err != nil {
				t.Fatal(err)
			}
			_, victim := serve(t, env)
			reported, _ := integer(redis.Do("XLEN", "telapi:usage"))
			poll.Until(t, "all reports are read", func() bool {
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
				poll.Until(t, "the usage is committed", func() (done bool) {
					_ = db.QueryRowContext(t.Context(), "SELECT COUNT(*) > 0 FROM tts_usage").Scan(&done)
					return done
				})
			}
			_ = victim.Cmd.Process.Kill()
			victim.WaitExit(t)
			_ = lock.Rollback()
			redis.MustDo("CLIENT", "UNPAUSE")
			if left, err := integer(redis.Do("XLEN", "telapi:usage")); left != reported {
				t.Fatalf("%d reports remain in the stream, want %d: %v", left, reported, err)
			}
			p.Instance = p.startPeer(t)
			poll.Until(t, "all reports are taken over", func() bool {
				left, err := integer(redis.Do("XLEN", "telapi:usage"))
				return err == nil && left == 0
			})
			s.waitForTotal(t, p)
			if committed != metricOver(t, p, `telapi_usage_reports_total{outcome="repeated"} `, 50) {
				t.Error("the instance was killed at another point than intended")
			}
		})
	}
}

// One of two instances is killed again and again while runtimes send reports.
func TestUsageSurvivesRepeatedKills(t *testing.T) {
	t.Parallel()
	env, _ := boot.RealStores(t)
	p := startService(t, env)
	rt, s := talk.StartRuntime(t, env), &reporter{}
	ctx, stop := context.WithCancel(t.Context())
	var runtimes sync.WaitGroup
	for range 2 {
		runtimes.Go(func() {
			for ctx.Err() == nil {
				s.send(t.Context(), t, rt, p.team)
			}
		})
	}
	for range 5 {
		_, victim := serve(t, env)
		<-time.After(rand.N(200 * time.Millisecond)) // kill it at a random point
		_ = victim.Cmd.Process.Kill()
		victim.WaitExit(t)
	}
	stop()
	runtimes.Wait()
	t.Logf("%d reports were sent", s.total.Requests)
	s.waitForTotal(t, p)
}

func TestUsageSurvivesDatabaseOutage(t *testing.T) {
	t.Parallel()
	postgres, redis := servers.StartPostgres(t, servers.PostgresOptions{}), servers.StartRedis(t)
	env := boot.Env{"DATABASE_URL": postgres.URL(), "REDIS_URL": redis.URL()}
	p := startService(t, env)
	rt, s := talk.StartRuntime(t, env), &reporter{}
	for _, fail := range []func(){postgres.Stop, postgres.Crash} {
		for range 200 {
			s.send(t.Context(), t, rt, p.team)
		}
		fail()
		for range 800 {
			s.send(t.Context(), t, rt, p.team)
		}
		poll.Until(t, "/health returns 503", func() bool { return p.HealthStatus() == http.StatusServiceUnavailable })
		postgres.Start(t)
		s.waitForTotal(t, p)
	}
}
