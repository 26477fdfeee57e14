package redisstore

import (
	"testing"
	"time"

	"telapi/test/conformance"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestStoreConforms runs the tests that the fakes of ratelimit and usage also pass.
func TestStoreConforms(t *testing.T) {
	for engine, start := range map[string]func(t *testing.T) Options{
		"embedded": func(t *testing.T) Options {
			var logs testkit.Buffer
			e, err := StartEmbedded(EmbeddedOptions{DataDir: t.TempDir()}, logs.Logger())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(e.Close)
			return e.Options(logs.Logger())
		},
		"redis": func(t *testing.T) Options { return redisOptions(testkit.StartRedis(t)) },
	} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s, _ := connect(t, start(t))
			reports := NewReportStream(s)
			reports.redeliverAfter = time.Hour
			conformance.Counter(t, s, "conformance")
			conformance.LimitsStore(t, s)
			conformance.ReportStream(t, reports, func() { reports.redeliverAfter = 0 })
		})
	}
}
