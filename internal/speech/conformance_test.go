package speech_test

import (
	"testing"

	"telapi/internal/speech"
	"telapi/test/conformance"
)

func TestReportFakesConform(t *testing.T) {
	t.Run("ReportStream", func(t *testing.T) {
		stream, timeOut := speech.NewFakeStream()
		conformance.ReportStream(t, stream, timeOut)
	})
	t.Run("ReportStore", func(t *testing.T) { conformance.ReportStore(t, speech.NewFakeReportStore()) })
}
