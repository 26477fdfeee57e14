package usage_test

import (
	"testing"

	"telapi/internal/usage"
	"telapi/test/conformance"
)

func TestFakesConform(t *testing.T) {
	t.Run("ReportStream", func(t *testing.T) {
		stream, timeOut := usage.NewFakeStream()
		conformance.ReportStream(t, stream, timeOut)
	})
	t.Run("ReportStore", func(t *testing.T) { conformance.ReportStore(t, usage.NewFakeReportStore()) })
}
