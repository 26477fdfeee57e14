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

	"telapi/callruntime/wire"
	"telapi/internal/calls"
	"telapi/internal/usage"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// reporter sends usage reports and counts them.
type reporter struct {
	mu    sync.Mutex
	total usage.Counts
}

// send sends a random report, sometimes twice as after a lost reply.
func (r *reporter) send(ctx context.Context, t *testing.T, rt *calls.Runtime, team string) {
	report := wire.SpeechReport{ID: uuid.NewString(), TeamID: team, Characters: 1 + rand.Int64N(500), Cached: rand.IntN(3) == 0, At: time.Now().UnixMilli(),
		Voice: []string{"anna", "zoe"}[rand.IntN(2)], Provider: "tone"}
	for range 1 + rand.IntN(2) {
		if err := rt.ReportSpeech(ctx, report); err != nil {
			t.Error(err)
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total.Requests++
	r.total.Characters += report.Characters
	if report.Cached {
		r.total.Cached += report.Characters
	} else {
		r.total.Billed += report.Characters
	}
}

// waitForTotal waits until all reports are processed and the usage is the total.
func (r *reporter) waitForTotal(t *testing.T, svc *service) {
	t.Helper()
	var got usage.Summary
	yesterday := time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly) // the test may span the end of a month
	testkit.Until(t, fmt.Sprintf("usage is %+v", r.total), func() bool {
		resp, body := svc.Call(t, http.MethodGet, "/api/v1/usage/tts-characters?groupBy=voice&from="+yesterday, "X-API-Key", svc.apiKey)
		if resp.StatusCode != http.StatusOK {
			return false
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		return got.Total == r.total && hasMetric(t, svc.Instance, "telapi_usage_reports_waiting 0")
	})
	if len(got.Buckets) == 0 || *got.Buckets[0].Group != "anna" {
		t.Errorf("buckets are %+v, want the first one of voice anna", got.Buckets)
	}
}

// asInteger converts the reply of testkit.Redis.Do.
func asInteger(m rueidis.RedisMessage, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return m.AsInt64()
}

// metricExceeds returns whether a metric is greater than n.
func metricExceeds(t *testing.T, svc *service, name string, n float64) bool {
	t.Helper()
	_, body := svc.Call(t, http.MethodGet, "/metrics")
	_, rest, _ := strings.Cut(body, "\n"+name)
	var value float64
	_, _ = fmt.Sscan(rest, &value)
	return value > n
}

func TestUsageReportsAreCountedOnce(t *testing.T) {
	onEmbeddedAndReal(t, nil, func(t *testing.T, svc *service) {
		rt, r := harness.StartRuntime(t, svc.env), &reporter{}
		var runtimes sync.WaitGroup
		for range 4 {
			runtimes.Go(func() {
				for range 150 {
					r.send(t.Context(), t, rt, svc.teamID)
				}
			})
		}
		runtimes.Wait()
		r.waitForTotal(t, svc)
		if err := rt.ReportSpeech(t.Context(), wire.SpeechReport{TeamID: svc.teamID, Characters: 1, At: 1}); err != nil {
			t.Fatal(err)
		}
		testkit.Until(t, "a report from 1970 is rejected", func() bool {
			return hasMetric(t, svc.Instance, `telapi_usage_reports_total{outcome="refused"} 1`) && svc.Log.Has("usage report rejected")
		})
		r.waitForTotal(t, svc)
	})
}

// An instance is killed after it has read reports, before or after it commits them
// to the database. Another instance takes them over.
func TestUsageSurvivesKilledInstance(t *testing.T) {
	for name, committed := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, redis := harness.RealStores(t)
			svc := startService(t, env)
			if err := svc.Stop(); err != nil {
				t.Fatal(err)
			}
			rt, r := harness.StartRuntime(t, env), &reporter{}
			for range 50 {
				r.send(t.Context(), t, rt, svc.teamID)
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
			reported, _ := asInteger(redis.Do("XLEN", "telapi:usage"))
			testkit.Until(t, "all reports are read", func() bool {
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
				testkit.Until(t, "the usage is committed", func() (done bool) {
					_ = db.QueryRowContext(t.Context(), "SELECT COUNT(*) > 0 FROM tts_usage").Scan(&done)
					return done
				})
			}
			_ = victim.Cmd.Process.Kill()
			victim.WaitExit(t)
			_ = lock.Rollback()
			redis.MustDo("CLIENT", "UNPAUSE")
			if left, err := asInteger(redis.Do("XLEN", "telapi:usage")); left != reported {
				t.Fatalf("%d reports remain in the stream, want %d: %v", left, reported, err)
			}
			svc.Instance = svc.startPeer(t)
			testkit.Until(t, "all reports are taken over", func() bool {
				left, err := asInteger(redis.Do("XLEN", "telapi:usage"))
				return err == nil && left == 0
			})
			r.waitForTotal(t, svc)
			if committed != metricExceeds(t, svc, `telapi_usage_reports_total{outcome="repeated"} `, 50) {
				t.Errorf("reports were counted again: %v, want %v: the instance was killed at another point than intended", !committed, committed)
			}
		})
	}
}
