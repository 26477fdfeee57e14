package redisstore

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime/wire"
	"telapi/internal/callback"
	"telapi/internal/calls"
)

// streamed returns the delivery of the newest parts of a streamed answer. A part's digest
// is its text, padded to 8 characters. The texts after a dot are those of the last line.
func (d *callbackFixture) streamed(item calls.WorkItem, text string, newest int) callback.StreamParams {
	body, last, ended := strings.Cut(text, ".")
	plain := d.delivery(item, text)
	p := callback.StreamParams{Credential: plain.Credential, CallbackID: uuid.NewString(), Epoch: d.epoch, Park: true, Digests: "+"}
	parts := strings.Fields(body)
	for i, part := range parts {
		p.Digests += fmt.Sprintf("%-8s", part)[:8]
		if i >= len(parts)-newest {
			p.Parts = append(p.Parts, d.entry(wire.KindBotEvent, part))
		}
	}
	p.Digests = strings.ReplaceAll(p.Digests, " ", "_")
	if ended {
		p.Digests += "." + last
		p.Last, p.Receipt = [][]byte{d.entry(wire.KindBotEvent, "end"+last)}, []byte(`{"of": "`+text+`"}`)
	}
	return p
}

func streamedAnswers(t *testing.T, opts Options) {
	type step struct {
		item   int
		text   string // all parts so far; a dot starts the last line. Empty: see call
		newest int    // parts in this call
		want   callback.Status
		call   func(*callbackFixture, []calls.WorkItem)
	}
	run := func(call func(*callbackFixture, []calls.WorkItem)) step { return step{call: call} }
	cancel := func(item int) step {
		return run(func(d *callbackFixture, items []calls.WorkItem) { must(d, d.Cancel(d.Context(), items[item].ID)) })
	}
	plain := func(item int, body string, want callback.Status) step {
		return run(func(d *callbackFixture, items []calls.WorkItem) { d.expect(items[item], body, want) })
	}
	for name, c := range map[string]struct {
		steps []step
		want  string
	}{
		"parts and the last line": {[]step{{0, "a", 1, callback.Routed, nil}, {0, "a b", 1, callback.Routed, nil}, {0, "a b c.", 1, callback.Routed, nil}}, "a b c end"},
		"all at once":             {[]step{{0, "a b c.", 3, callback.Routed, nil}, plain(1, "p", callback.Routed)}, "a b c end p"},
		"nothing but the end":     {[]step{{0, ".", 0, callback.Routed, nil}}, "end"},
		"repeated after a break": {[]step{{0, "a", 1, callback.Routed, nil}, {0, "a b", 1, callback.Routed, nil}, {0, "a", 1, callback.Routed, nil},
			{0, "a b c", 2, callback.Routed, nil}, {0, "a b c d.", 1, callback.Routed, nil}}, "a b c d end"},
		"other text":                {[]step{{0, "a b", 2, callback.Routed, nil}, {0, "a x", 2, callback.Consumed, nil}, {0, "a.", 1, callback.Consumed, nil}, {0, "a b.", 0, callback.Routed, nil}}, "a b end"},
		"two streams with one text": {[]step{{0, "a", 1, callback.Routed, nil}, {0, "a b", 2, callback.Routed, nil}, {0, "a b", 1, callback.Routed, nil}, {0, "a b.", 0, callback.Routed, nil}, {0, "a b.", 0, callback.Duplicate, nil}}, "a b end"},
		"repeated after the end": {[]step{{0, "a b.", 2, callback.Routed, nil}, {0, "a", 1, callback.Routed, nil}, {0, "x", 1, callback.Consumed, nil}, {0, "a b.", 1, callback.Duplicate, nil},
			{0, "a b.z", 1, callback.Consumed, nil}, {0, "a b c", 1, callback.Consumed, nil}}, "a b end"},
		"missing parts":              {[]step{{0, "a b c", 1, callback.Missing, nil}, {0, "a b c.", 2, callback.Missing, nil}, {0, "a b c.", 3, callback.Routed, nil}}, "a b c end"},
		"plain after a part":         {[]step{{0, "a", 1, callback.Routed, nil}, plain(0, "p", callback.Streaming), {0, "a.", 0, callback.Routed, nil}, plain(0, "p", callback.Consumed)}, "a end"},
		"stream after plain":         {[]step{plain(0, "p", callback.Routed), {0, "a", 1, callback.Consumed, nil}}, "p"},
		"parked until its turn":      {[]step{{1, "a", 1, callback.Parked, nil}, {1, "a b", 1, callback.Parked, nil}, plain(0, "p", callback.Routed), {1, "a b c", 1, callback.Routed, nil}, {1, "a b c.", 0, callback.Routed, nil}}, "p a b c end"},
		"parked to its end":          {[]step{{1, "a", 1, callback.Parked, nil}, {1, "a b.", 1, callback.Parked, nil}, {1, "a b.", 2, callback.Duplicate, nil}, plain(0, "p", callback.Routed)}, "p a b end"},
		"two parked streams":         {[]step{{2, "x", 1, callback.Parked, nil}, {1, "a", 1, callback.Parked, nil}, {2, "x y.", 1, callback.Parked, nil}, {0, "p.", 1, callback.Routed, nil}, {1, "a b.", 1, callback.Routed, nil}}, "p end a b end x y end"},
		"cancelled":                  {[]step{{0, "a", 1, callback.Routed, nil}, cancel(0), {0, "a b", 1, callback.Cancelled, nil}, plain(1, "p", callback.Routed)}, "a p"},
		"cancelled while parked":     {[]step{{1, "a b", 2, callback.Parked, nil}, {2, "x y.", 2, callback.Parked, nil}, cancel(1), cancel(2), plain(0, "p", callback.Routed), {1, "a b c", 1, callback.Cancelled, nil}}, "p"},
		"released by a cancellation": {[]step{{1, "a", 1, callback.Parked, nil}, cancel(0), {1, "a b.", 1, callback.Routed, nil}}, "a b end"},
		"end of the channel": {[]step{{1, "a b", 2, callback.Parked, nil}, run(func(d *callbackFixture, _ []calls.WorkItem) { must(d, d.End(d.Context(), "done")) }),
			{1, "a b c", 1, callback.Ended, nil}}, "a b done"},
		"deadline": {[]step{{0, "a", 1, callback.Routed, nil}, {1, "x", 1, callback.Parked, nil}, run(func(d *callbackFixture, _ []calls.WorkItem) {
			d.setFirstDeadline(time.Now())
			d.script("touch")
		}), {0, "a b", 1, callback.Invalid, nil}, {1, "x.", 0, callback.Routed, nil}}, "a timeout:w0 x end"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newCallbackFixture(t, opts, nil)
			var items []calls.WorkItem
			for i := range 3 {
				items = append(items, d.await(calls.AwaitOptions{Kind: []wire.WorkItemKind{wire.LLMItem, wire.BotItem, wire.LLMItem}[i], WorkItemID: fmt.Sprint("w", i)}))
			}
			for i, s := range c.steps {
				if s.call != nil {
					s.call(d, items)
					continue
				}
				p := d.streamed(items[s.item], s.text, s.newest)
				for range 2 { // the reply to the first call may be lost
					got, err := d.callbacks.DeliverStream(t.Context(), p)
					same := got.Status == callback.Routed && s.want == callback.Parked && p.Last == nil // nothing is left to do
					if err != nil || got.Status != s.want && !same {
						t.Fatalf("step %d, %q: %+v, %v, want %s", i+1, s.text, got, err, s.want)
					}
				}
			}
			d.expectEvents(c.want)
			d.expectNothingParked()
		})
	}
}
