package redisstore

import (
	"testing"
	"time"

	"telapi/test/conformance"
	"telapi/test/servers"
)

// The fakes of ratelimit and usage pass the same tests.
func TestStoreConforms(t *testing.T) {
	for engine, start := range map[string]func(t *testing.T) Options{
		"embedded": func(t *testing.T) Options {
			var j logBuffer
			e, err := StartEmbedded(t.TempDir(), j.logger())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.Close)
			return e.Options(j.logger())
		},
		"redis": func(t *testing.T) Options { return redisOptions(servers.StartRedis(t)) },
	} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s, _ := connect(t, start(t))
			reports := NewReports(s)
			reports.redeliverAfter = time.Hour
			conformance.Counter(t, s, "conformance")
			conformance.LimitsStore(t, s)
			conformance.Stream(t, reports, func() { reports.redeliverAfter = 0 })
		})
	}
}
