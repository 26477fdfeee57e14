package app

import (
	"io"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"telapi/internal/config"
	"telapi/test/testkit"
)

// gcPercent returns how far the heap may grow before garbage is collected.
func gcPercent() uint64 {
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(percent)
	return percent[0].Value.Uint64()
}

func TestMediaServiceLimitsGarbage(t *testing.T) {
	for _, tt := range []struct {
		memory      string
		gogc        int
		want, after uint64
	}{
		{"0", 100, 100, 100},
		{"67108864", 100, 100, 100},
		{"134217728", 100, 75, 100},
		{"1073741824", 100, 31, 100},
		{"1073741824", 50, 50, 50}, // an operator has set GOGC
	} {
		defer debug.SetGCPercent(debug.SetGCPercent(tt.gogc))
		cfg, _, err := config.Load([]string{"MEDIA_MEMORY_BYTES=" + tt.memory, "MEDIA_HOST=127.0.0.1", "MEDIA_PORT=0", "DATA_DIR=" + t.TempDir()}, config.Tool)
		testkit.Must(t, err)
		m, err := NewMedia(t.Context(), cfg, Options{Log: io.Discard})
		testkit.Must(t, err)
		got := gcPercent()
		m.close()
		if after := gcPercent(); got != tt.want || after != tt.after {
			t.Errorf("MEDIA_MEMORY_BYTES=%s GOGC=%d: garbage collected at %d %%, and at %d %% after the service, want %d %% and %d %%", tt.memory, tt.gogc, got, after, tt.want, tt.after)
		}
	}
}
