package callruntime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

// ReportSpeech reports speech that the runtime synthesized, for the usage of its
// team. Empty ID and At are filled in. If the outcome is unknown, reporting again
// with the same ID and At is safe.
func (r *Runtime) ReportSpeech(ctx context.Context, report wire.SpeechReport) error {
	if report.TeamID == "" || report.Characters < 1 {
		return errors.New("report speech: TeamID and Characters are required")
	}
	report.ID = cmp.Or(report.ID, uuid.NewString())
	report.At = cmp.Or(report.At, time.Now().UnixMilli())
	encoded, err := json.Marshal(report)
	if err == nil {
		c := r.client
		err = c.Do(ctx, c.B().Xadd().Key(kv.ReportsStream).Id("*").FieldValue().FieldValue("report", string(encoded)).Build().ToRetryable()).Error()
	}
	if err != nil {
		return fmt.Errorf("report speech: %w", err)
	}
	return nil
}
