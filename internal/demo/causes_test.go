package demo

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/calls"
)

func TestEntryFollowsItsCause(t *testing.T) {
	for entry, want := range map[string]string{
		`{"kind":"frame","message":{"type":"chat","messageId":"M"}}`:              "entry:12-345 stored:M after frame:M",
		`{"kind":"session","event":"connected"}`:                                  "entry:12-345 after",
		`{"kind":"bot_message","callbackId":"C","workItemId":"W","text":"hello"}`: "entry:12-345 routed:C after request:W answer:W parked:W",
		`{"kind":"bot_message","callbackId":"C","text":"channel credential"}`:     "entry:12-345 routed:C after",
		`{"kind":"timeout","workItemId":"W","workItemKind":"bot"}`:                "entry:12-345 after request:W answer:W parked:W",
		`{"kind":"channel_ended","reason":"hangup"}`:                              "entry:12-345 ended after ending",
	} {
		e := entryEvent(delivery(t, "12-345", entry))
		if got := strings.TrimSpace(strings.Join(e.IDs, " ") + " after " + strings.Join(e.After, " ")); got != want || e.Source != "entries" || e.Seq != 12 {
			t.Errorf("%s: %s, event %d of %s; want %s, event 12 of entries", entry, got, e.Seq, e.Source, want)
		}
	}
}

func TestMessageFollowsItsSender(t *testing.T) {
	e := messageEvent(delivery(t, "7-1000", `{"kind":"frame","at":1000,"message":{"type":"chat","messageId":"M"}}`))
	if !slices.Equal(e.IDs, []string{"message:M"}) || !slices.Equal(e.After, []string{"sending:M"}) || e.Source != "messages" || e.Seq != 7 {
		t.Errorf("message event %+v, want message:M after sending:M", e)
	}
}

// Audio has no position: nothing follows it.
func TestAudioHasNoCause(t *testing.T) {
	d := delivery(t, "", `{"kind":"frame","message":{"type":"audio","messageId":"M"}}`)
	for _, e := range []Event{entryEvent(d), messageEvent(d)} {
		if e.Source != "" || e.Seq != 0 || e.IDs != nil || e.After != nil {
			t.Errorf("audio event %+v, want no source, ID and cause", e)
		}
	}
}

func TestReceiptFollowsEntriesUnlessParked(t *testing.T) {
	q := botRequest{ChannelID: "s", WorkItemID: "W"}
	for receipt, want := range map[string]string{
		`{"status":"accepted","callbackId":"C","commands":[{"type":"hangup","decision":"allowed"}]}`: "202 accepted, hangup allowed:  after answer:W routed:C",
		`{"status":"parked","callbackId":"C"}`:                                                       "202 parked: parked:W after answer:W",
		`{"error":{"code":"CALLBACK_CONSUMED"}}`:                                                     "202 CALLBACK_CONSUMED:  after answer:W",
	} {
		e := receiptEvent(q, response{http.StatusAccepted, http.Header{"X-Request-Id": {"R"}}, []byte(receipt)}, 1.5)
		if got := e.Title + ": " + strings.Join(e.IDs, " ") + " after " + strings.Join(e.After, " "); got != want {
			t.Errorf("receipt %s: %s, want %s", receipt, got, want)
		}
		if e.HTTP.Status != http.StatusAccepted || e.HTTP.Headers["X-Request-Id"] != "R" || e.Ms != 1.5 {
			t.Errorf("receipt %s: exchange %+v in %g ms, want status 202, the request ID and 1.5 ms", receipt, e.HTTP, e.Ms)
		}
	}
}

func delivery(t *testing.T, position, entry string) calls.Delivery {
	t.Helper()
	d := calls.Delivery{Position: position, JSON: jsontext.Value(entry)}
	if err := json.Unmarshal(d.JSON, &d.Entry); err != nil {
		t.Fatal(err)
	}
	return d
}
