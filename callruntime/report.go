package callruntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

// ReportSpeech has speech that the runtime had made counted on the account of its
// team. ID and At are filled in where they are empty. To report again under the
// same ID and At, because it is not known what became of it, is harmless.
func (r *Runtime) ReportSpeech(ctx context.Context, spoken wire.SpeechReport) error {
	if spoken.TeamID == "" || spoken.Characters < 1 {
		return errors.New("report speech: a report needs a team, and characters")
	}
	if spoken.ID == "" {
		spoken.ID = uuid.NewString()
	}
	if spoken.At == 0 {
		spoken.At = time.Now().UnixMilli()
	}
	report, err := json.Marshal(spoken)
	if err == nil {
		c := r.client
		err = c.Do(ctx, c.B().Xadd().Key(kv.ReportsStream).Id("*").FieldValue().FieldValue("report", string(report)).Build().ToRetryable()).Error()
	}
	if err != nil {
		return fmt.Errorf("report speech: %w", err)
	}
	return nil
}
