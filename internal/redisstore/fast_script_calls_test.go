package redisstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"telapi/callruntime/wire"
	"telapi/internal/kv"
)

// anyChannel replaces the channel's ID in arguments and results.
const anyChannel = "CHANNEL"

// scriptCalls generates script calls, most of them valid. It records earlier calls and
// results in order to generate retries, interleaved calls and invalid ones.
type scriptCalls struct {
	*rand.Rand
	now        time.Time
	limits     []string
	count      int // for new names
	epoch      string
	owner      string   // connection
	number     string   // of the owner
	lastEntry  string   // ID of the newest entry
	token      string   // of the claim
	newest     string   // message ID in the history
	positions  []string // entries of the runtime stream
	messageIDs []string
	messages   []string // arguments of earlier sends: the names and texts
	items      []simulatedItem
	callbacks  [][]string // arguments of earlier callbacks
	first      string     // digest of the first awaited work item
	pending    [][]string // next calls: script and arguments
}

type simulatedItem struct{ id, digest, kind, scope string }

const firstEpoch = "epoch1"

func newScriptCalls(r *rand.Rand) scriptCalls {
	limits := wire.ChannelLimits{HistoryMessages: 20, HistoryMs: 600_000, BacklogEntries: 10_000, BacklogBytes: 1 << 20, IdleMs: 86_400_000, KeepMs: 90_000_000}
	if r.IntN(2) == 0 {
		limits.BacklogEntries, limits.BacklogBytes = 50+r.Int64N(300), 4_000+r.Int64N(40_000)
	}
	o := scriptCalls{Rand: r, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), limits: kv.LimitArgs(limits), epoch: firstEpoch}
	o.owner, o.token = o.name("connection"), o.name("token")
	o.pending = [][]string{
		append([]string{"connect"}, o.connect(o.owner)...),
		{"claim", "runtime", o.token, "3600000", "attach", ""},
	}
	for limits.BacklogEntries == 10_000 && o.count < 5_000 { // more frames than one set of message IDs holds
		o.pending = append(o.pending, append([]string{"frame"}, o.frames(200)...))
	}
	return o
}

func (o *scriptCalls) name(kind string) string {
	o.count++
	return fmt.Sprintf("%s-%d", kind, o.count)
}

func (o *scriptCalls) chance(percent int) bool { return o.IntN(100) < percent }

func pick[T any](o *scriptCalls, list []T) (item T) {
	if len(list) > 0 {
		item = list[o.IntN(len(list))]
	}
	return item
}

// advanceClock moves the clock: usually a little, sometimes past a timeout or the
// interval at which TTLs are extended, rarely past the channel's idle time.
func (o *scriptCalls) advanceClock() {
	switch n := o.IntN(1000); {
	case n < 800:
		o.now = o.now.Add(time.Duration(o.IntN(20)) * time.Millisecond)
	case n < 980:
		o.now = o.now.Add(time.Duration(o.IntN(3000)) * time.Millisecond)
	case n < 999 || o.count < 1000:
		o.now = o.now.Add(time.Duration(o.IntN(120)) * time.Second)
	default:
		o.now = o.now.Add(25 * time.Hour)
	}
}

// next returns the next script to call and its arguments.
func (o *scriptCalls) next() (script string, args []string) {
	if len(o.pending) > 0 {
		call := o.pending[0]
		o.pending = o.pending[1:]
		return call[0], call[1:]
	}
	switch n := o.IntN(1000); {
	case n < 280:
		return "frame", o.frames(o.size())
	case n < 480:
		return "send", o.send()
	case n < 620:
		return "await", o.await()
	case n < 840 && o.first == "" && o.chance(80):
		return "await", o.await()
	case n < 840:
		return "callback", o.callback()
	case n < 855:
		return "cancel", []string{o.claimToken(), o.item().id}
	case n < 915:
		return "commit", []string{o.claimToken(), o.position(), "1000"}
	case n < 940:
		connection := o.owner
		if o.chance(50) {
			connection = o.name("connection")
		}
		return "connect", o.connect(connection)
	case n < 950:
		o.pending = append(o.pending, append([]string{"connect"}, o.connect(o.name("connection"))...))
		return "detach", []string{o.connection(), `{"event":"disconnected"}`, o.lastEntry}
	case n < 960:
		return "renew", []string{o.connection(), o.number, "60000", pick(o, []string{"", "1"}), o.epoch, o.newest, o.knownEntry()}
	case n < 970:
		return "claim", []string{pick(o, []string{"runtime", "other"}), o.name("token"), "20000", pick(o, []string{"attach", "accept", "renew"}), o.requestedAt()}
	case n < 980:
		return "touch", nil
	case n < 990:
		return "since", []string{o.epoch, o.cursor()}
	case n < 999:
		item := o.item()
		return "check_credential", []string{item.digest, item.kind, ""}
	default:
		return "end", []string{o.claimToken(), "done", `{"kind":"channel_ended","channelId":"` + anyChannel + `"}`}
	}
}

func (o *scriptCalls) claimToken() string {
	if o.chance(3) {
		return "wrong"
	}
	return pick(o, []string{o.token, o.token, ""})
}

func (o *scriptCalls) connection() string {
	if o.chance(5) {
		return "other"
	}
	return o.owner
}

func (o *scriptCalls) connect(connection string) []string {
	args := []string{connection, pick(o, []string{"", o.owner}), pick(o, []string{"", "1"}), o.requestedAt(), "60000"}
	if o.chance(50) {
		args = append(args, "1", pick(o, []string{o.epoch, "*", "other"}), o.cursor())
	} else {
		args = append(args, "", "", "")
	}
	args = append(args, `{"kind":"session","channelId":"`+anyChannel+`","event":"connected"}`, firstEpoch, "team", "endpoint", "chat", "", "", "{}")
	return append(args, o.limits...)
}

// requestedAt returns when a connection or claim was requested: mostly now.
func (o *scriptCalls) requestedAt() string {
	at := o.now
	if o.chance(10) {
		at = at.Add(-time.Duration(o.IntN(60)) * time.Second)
	}
	return pick(o, []string{"", fmt.Sprint(at.UnixMilli())})
}

// deadline returns the last argument of a call.
func (o *scriptCalls) deadline() string {
	switch n := o.IntN(100); {
	case n < 60:
		return ""
	case n < 98:
		return fmt.Sprint(o.now.Add(time.Second).UnixMilli())
	default:
		return fmt.Sprint(o.now.Add(-time.Millisecond).UnixMilli())
	}
}

// knownEntry returns the newest entry that a connection knows: mostly a recent
// one, rarely one that does not exist.
func (o *scriptCalls) knownEntry() string {
	if o.chance(1) {
		return pick(o, []string{"1-1", "999999-1", "garbage"})
	}
	return pick(o, []string{o.lastEntry, o.lastEntry, "", pick(o, o.positions[max(0, len(o.positions)-5):])})
}

// size returns a number of frames or messages for one call.
func (o *scriptCalls) size() int {
	if o.chance(25) {
		return 1 + o.IntN(64)
	}
	return 1 + o.IntN(3)
}

func (o *scriptCalls) flags(n int, usual, special string) string {
	flags := make([]byte, n)
	for i := range flags {
		flags[i] = usual[o.IntN(len(usual))]
	}
	if o.chance(6) {
		flags[o.IntN(n)] = special[o.IntN(len(special))]
	}
	return string(flags)
}

func (o *scriptCalls) frames(n int) []string {
	args := []string{o.connection(), o.number, o.knownEntry(), o.flags(n, "c-", "eeed")}
	for range n {
		id := o.name("frame")
		if len(o.messageIDs) > 0 && o.chance(5) {
			id = pick(o, o.messageIDs)
		}
		args, o.messageIDs = append(args, id), append(o.messageIDs, id)
	}
	for i := range n {
		args = append(args, `{"kind":"frame","channelId":"`+anyChannel+`","text":"`+strings.Repeat("x", o.IntN(60))+args[4+i]+`"}`)
	}
	return args
}

func (o *scriptCalls) send() []string {
	n := o.size()
	after, names := o.newest, ""
	if o.chance(2) {
		after = o.cursor()
	}
	texts := make([]string, n)
	for i := range texts {
		texts[i] = `{"text":"` + o.name("message") + `"}`
		if len(o.messages) > 0 && o.chance(3) {
			texts[i] = pick(o, o.messages)
		}
	}
	if o.chance(15) {
		list := make([]string, n)
		for i := range list {
			list[i] = pick(o, []string{"-", o.name("named"), "named-again"})
		}
		names = strings.Join(list, " ")
	}
	o.messages = append(o.messages, texts...)
	return append([]string{o.claimToken(), o.flags(n, "-", "eeed"), after, names}, texts...)
}

// cursor returns an ID of the history: mostly the newest one.
func (o *scriptCalls) cursor() string {
	number, _, _ := strings.Cut(o.newest, "-")
	return pick(o, []string{o.newest, o.newest, "", "0" + number + "-1", "1-1", "garbage"})
}

func (o *scriptCalls) position() string {
	if o.chance(10) {
		return pick(o, []string{"1-1", "999999-1", ""})
	}
	if o.chance(50) && len(o.positions) > 0 {
		return o.positions[len(o.positions)-1]
	}
	return pick(o, o.positions)
}

func (o *scriptCalls) await() []string {
	item := simulatedItem{o.name("item"), o.name("digest"), pick(o, []string{"bot", "llm", "tool"}), "work_item"}
	switch {
	case o.chance(15):
		item.scope = "channel"
	case len(o.items) > 0 && o.chance(5):
		item.id = pick(o, o.items).id
	}
	o.items = append(o.items, item)
	ttl := 1 + o.IntN(600_000)
	if o.chance(10) {
		ttl = 1 + o.IntN(2_000)
	}
	entry := `{"kind":"timeout","channelId":"` + anyChannel + `","workItemId":"` + item.id + `"}`
	return []string{o.claimToken(), item.digest, item.kind, item.scope, item.id, fmt.Sprint(ttl), entry}
}

// item returns a work item: mostly the first one that is awaited.
func (o *scriptCalls) item() simulatedItem {
	if o.chance(30) {
		return pick(o, o.items[max(0, len(o.items)-5):])
	}
	for _, item := range o.items {
		if item.digest == o.first {
			return item
		}
	}
	return simulatedItem{o.name("item"), o.name("digest"), "bot", "work_item"}
}

func (o *scriptCalls) callback() []string {
	if len(o.callbacks) > 0 && o.chance(10) { // a retry, or a duplicate with another callback ID
		args := slices.Clone(pick(o, o.callbacks))
		if o.chance(50) {
			args[3] = o.name("callback")
		}
		return args
	}
	item := o.item()
	args := []string{item.digest, item.kind, item.id, o.name("callback"), o.name("body"), pick(o, []string{"", "1", "86400000"}), o.epoch, `{"of": "` + item.id + `"}`}
	switch {
	case item.kind == "bot":
		args[2] = ""
	case o.chance(3):
		args[1] = "bot"
	case o.chance(3):
		args[2] = "other"
	}
	if o.chance(3) {
		args[6] = "stale"
	}
	for range o.IntN(4) {
		args = append(args, `{"kind":"bot_message","channelId":"`+anyChannel+`","text":"`+o.name("text")+`"}`)
	}
	o.callbacks = append(o.callbacks, args)
	return args
}

// record stores what later calls need from the outcome of a call.
func (o *scriptCalls) record(script string, args []string, outcome string) {
	switch {
	case script == "connect" && strings.Contains(outcome, "attached"):
		o.owner = args[0]
	case script == "claim" && strings.Contains(outcome, "claimed"):
		o.token = args[1]
	}
	if strings.HasPrefix(outcome, "reply: ") && strings.Contains(outcome[:min(60, len(outcome))], `"lost"`) {
		o.pending = append(o.pending, []string{"claim", "runtime", o.name("token"), "3600000", "attach", ""},
			append([]string{"connect"}, o.connect(o.name("connection"))...))
	}
	for name, value := range map[string]*string{"outLast": &o.newest, "epoch": &o.epoch, "connections": &o.number} {
		if _, rest, ok := strings.Cut(outcome, "\n"+name+" = "); ok {
			*value, _, _ = strings.Cut(rest, "\n")
		}
	}
	if _, rest, ok := strings.Cut(outcome, "\nflow = "); ok {
		flow := strings.Fields(rest)
		o.lastEntry = flow[3] + "-" + flow[4]
	}
	o.first = ""
	head := ""
	for line := range strings.SplitSeq(outcome, "\n") {
		if notice, ok := strings.CutPrefix(line, kv.RuntimeTopic(anyChannel)+" E"); ok {
			id, _, _ := strings.Cut(notice, " ")
			o.positions = append(o.positions, id)
		}
		if queue, ok := strings.CutPrefix(line, "queue = "); ok {
			head, _, _ = strings.Cut(queue, " ")
		}
		if digest, item, ok := strings.Cut(line, " = awaiting "); ok && strings.HasPrefix(item, head+" ") {
			o.first = digest
		}
	}
}
