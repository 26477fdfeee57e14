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

// callGenerator generates script calls, most of them valid. It records earlier calls and
// results in order to generate retries, interleaved calls and invalid ones.
type callGenerator struct {
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
	messages   []string // message IDs of earlier sends
	items      []simulatedItem
	callbacks  [][]string // arguments of earlier callbacks
	first      string     // digest of the first awaited work item
	pending    [][]string // next calls: script and arguments
}

type simulatedItem struct{ id, digest, kind, scope string }

const firstEpoch = "epoch1"

func newCallGenerator(r *rand.Rand) callGenerator {
	limits := wire.ChannelLimits{HistoryMessages: 20, HistoryMs: 600_000, BacklogEntries: 10_000, BacklogBytes: 1 << 20, IdleMs: 86_400_000, KeepMs: 90_000_000}
	if r.IntN(2) == 0 {
		limits.BacklogEntries, limits.BacklogBytes = 50+r.Int64N(300), 4_000+r.Int64N(40_000)
	}
	g := callGenerator{Rand: r, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), limits: kv.LimitArgs(limits), epoch: firstEpoch}
	g.owner, g.token = g.name("connection"), g.name("token")
	lease := "3600000"
	if limits.BacklogEntries < 10_000 {
		lease = "2000" // most frames come from a session that is offered
	}
	g.pending = [][]string{
		append([]string{"connect"}, g.connect(g.owner)...),
		{"claim", "runtime", g.token, lease, "attach", ""},
	}
	for limits.BacklogEntries == 10_000 && g.count < 5_000 { // more frames than one set of message IDs holds
		g.pending = append(g.pending, append([]string{"frame"}, g.frames(200)...))
	}
	return g
}

func (g *callGenerator) name(kind string) string {
	g.count++
	return fmt.Sprintf("%s-%d", kind, g.count)
}

// digest returns a new digest of a credential.
func (g *callGenerator) digest() string {
	g.count++
	return fmt.Sprintf("%064x", g.count)
}

func (g *callGenerator) chance(percent int) bool { return g.IntN(100) < percent }

func pick[T any](g *callGenerator, list []T) (item T) {
	if len(list) > 0 {
		item = list[g.IntN(len(list))]
	}
	return item
}

// advanceClock moves the clock: usually a little, sometimes past a timeout or the
// interval at which TTLs are extended, rarely past the channel's idle time.
func (g *callGenerator) advanceClock() {
	switch n := g.IntN(1000); {
	case n < 800:
		g.now = g.now.Add(time.Duration(g.IntN(20)) * time.Millisecond)
	case n < 980:
		g.now = g.now.Add(time.Duration(g.IntN(3000)) * time.Millisecond)
	case n < 999 || g.count < 1000:
		g.now = g.now.Add(time.Duration(g.IntN(120)) * time.Second)
	default:
		g.now = g.now.Add(25 * time.Hour)
	}
}

// next returns the next script to call and its arguments.
func (g *callGenerator) next() (script string, args []string) {
	if len(g.pending) > 0 {
		call := g.pending[0]
		g.pending = g.pending[1:]
		return call[0], call[1:]
	}
	switch n := g.IntN(1000); {
	case n < 280:
		return "frame", g.frames(g.size())
	case n < 480:
		return "send", g.send()
	case n < 620:
		return "await", g.await()
	case n < 840 && g.first == "" && g.chance(80):
		return "await", g.await()
	case n < 800:
		return "callback", g.callback()
	case n < 840:
		return "stream", g.stream()
	case n < 855:
		return "cancel", []string{g.claimToken(), g.item().id}
	case n < 915:
		return "commit", []string{g.claimToken(), g.position()}
	case n < 940:
		connection := g.owner
		if g.chance(50) {
			connection = g.name("connection")
		}
		return "connect", g.connect(connection)
	case n < 950:
		g.pending = append(g.pending, append([]string{"connect"}, g.connect(g.name("connection"))...))
		return "detach", []string{g.connection(), `{"event":"disconnected"}`, g.lastEntry}
	case n < 960:
		return "renew", []string{g.connection(), g.number, "60000", pick(g, []string{"", "1"}), g.epoch, g.newest, g.knownEntry()}
	case n < 970:
		return "claim", []string{pick(g, []string{"runtime", "other"}), g.name("token"), pick(g, []string{"0", "20000", "3600000", "3600000"}), pick(g, []string{"attach", "accept", "renew"}), g.requestedAt()}
	case n < 980:
		return "touch", nil
	case n < 990:
		return "since", []string{g.epoch, g.cursor()}
	case n < 999:
		item := g.item()
		return "check_credential", []string{item.digest, item.kind, ""}
	default:
		return "end", []string{g.claimToken(), "done", `{"kind":"channel_ended","channelId":"` + anyChannel + `"}`}
	}
}

func (g *callGenerator) claimToken() string {
	if g.chance(3) {
		return "wrong"
	}
	return pick(g, []string{g.token, g.token, ""})
}

func (g *callGenerator) connection() string {
	if g.chance(5) {
		return "other"
	}
	return g.owner
}

func (g *callGenerator) connect(connection string) []string {
	args := []string{connection, pick(g, []string{"", g.owner}), pick(g, []string{"", "1"}), g.requestedAt(), "60000"}
	if g.chance(50) {
		args = append(args, "1", pick(g, []string{g.epoch, "*", "other"}), g.cursor())
	} else {
		args = append(args, "", "", "")
	}
	args = append(args, `{"kind":"session","channelId":"`+anyChannel+`","event":"connected"}`, pick(g, []string{"", `{"sessionId":"` + anyChannel + `"}`}), firstEpoch, "team", "endpoint", "chat", "", "", "{}")
	return append(args, g.limits...)
}

// requestedAt returns when a connection or claim was requested: mostly now.
func (g *callGenerator) requestedAt() string {
	at := g.now
	if g.chance(10) {
		at = at.Add(-time.Duration(g.IntN(60)) * time.Second)
	}
	return pick(g, []string{"", fmt.Sprint(at.UnixMilli())})
}

// deadline returns the last argument of a call.
func (g *callGenerator) deadline() string {
	switch n := g.IntN(100); {
	case n < 60:
		return ""
	case n < 98:
		return fmt.Sprint(g.now.Add(time.Second).UnixMilli())
	default:
		return fmt.Sprint(g.now.Add(-time.Millisecond).UnixMilli())
	}
}

// knownEntry returns the newest entry that a connection knows: mostly a recent
// one, rarely one that does not exist.
func (g *callGenerator) knownEntry() string {
	if g.chance(1) {
		return pick(g, []string{"1-1", "999999-1", "garbage"})
	}
	return pick(g, []string{g.lastEntry, g.lastEntry, "", pick(g, g.positions[max(0, len(g.positions)-5):])})
}

// size returns a number of frames or messages for one call.
func (g *callGenerator) size() int {
	if g.chance(25) {
		return 1 + g.IntN(64)
	}
	return 1 + g.IntN(3)
}

func (g *callGenerator) flags(n int, usual, special string) string {
	flags := make([]byte, n)
	for i := range flags {
		flags[i] = usual[g.IntN(len(usual))]
	}
	if g.chance(6) {
		flags[g.IntN(n)] = special[g.IntN(len(special))]
	}
	return string(flags)
}

func (g *callGenerator) frames(n int) []string {
	args := []string{g.connection(), g.number, g.knownEntry(), g.flags(n, "c-", "eeed")}
	for range n {
		id := g.name("frame")
		if len(g.messageIDs) > 0 && g.chance(5) {
			id = pick(g, g.messageIDs)
		}
		args, g.messageIDs = append(args, id), append(g.messageIDs, id)
	}
	for i := range n {
		args = append(args, `{"kind":"frame","channelId":"`+anyChannel+`","text":"`+strings.Repeat("x", g.padding())+args[4+i]+`"}`)
	}
	return args
}

func (g *callGenerator) send() []string {
	n := g.size()
	after := g.newest
	if g.chance(2) {
		after = g.cursor()
	}
	args := []string{g.claimToken(), g.flags(n, "-", "eeed"), after, g.committed()}
	for range n {
		id := g.name("message")
		if len(g.messages) > 0 && g.chance(3) {
			id = pick(g, g.messages)
		}
		args, g.messages = append(args, id), append(g.messages, id)
	}
	for i := range n {
		args = append(args, `{"text":"`+args[4+i]+`"}`)
	}
	return args
}

// cursor returns an ID of the history: mostly the newest one.
func (g *callGenerator) cursor() string {
	number, _, _ := strings.Cut(g.newest, "-")
	return pick(g, []string{g.newest, g.newest, "", "0" + number + "-1", "1-1", "garbage"})
}

func (g *callGenerator) position() string {
	if g.chance(10) {
		return pick(g, []string{"1-1", "999999-1", ""})
	}
	if g.chance(50) && len(g.positions) > 0 {
		return g.positions[len(g.positions)-1]
	}
	return pick(g, g.positions)
}

func (g *callGenerator) await() []string {
	item := simulatedItem{g.name("item"), g.digest(), pick(g, []string{"bot", "llm", "tool"}), "item"}
	switch {
	case g.chance(15):
		item.scope = "channel"
	case len(g.items) > 0 && g.chance(5):
		item.id = pick(g, g.items).id
	}
	g.items = append(g.items, item)
	ttl := 1 + g.IntN(600_000)
	if g.chance(10) {
		ttl = 1 + g.IntN(2_000)
	}
	entry := `{"kind":"timeout","channelId":"` + anyChannel + `","workItemId":"` + item.id + `"}`
	return []string{g.claimToken(), item.digest, item.kind, item.scope, item.id, fmt.Sprint(ttl), entry, "", g.committed()}
}

// item returns a work item: mostly the first one that is awaited.
func (g *callGenerator) item() simulatedItem {
	if g.chance(30) {
		return pick(g, g.items[max(0, len(g.items)-5):])
	}
	for _, item := range g.items {
		if item.digest == g.first {
			return item
		}
	}
	return simulatedItem{g.name("item"), g.digest(), "bot", "item"}
}

func (g *callGenerator) callback() []string {
	if len(g.callbacks) > 0 && g.chance(10) { // a retry, or a duplicate with another callback ID
		args := slices.Clone(pick(g, g.callbacks))
		if g.chance(50) {
			args[3] = g.name("callback")
		}
		return args
	}
	item := g.item()
	args := []string{item.digest, item.kind, item.id, g.name("callback"), g.name("body"), pick(g, []string{"", "1", "86400000"}), g.epoch, `{"of": "` + item.id + `"}`, pick(g, []string{"", "1", "1"})}
	switch {
	case item.kind == "bot":
		args[2] = ""
	case g.chance(3):
		args[1] = "bot"
	case g.chance(3):
		args[2] = "other"
	}
	if g.chance(3) {
		args[6] = "stale"
	}
	for range g.IntN(4) {
		args = append(args, `{"kind":"bot_message","channelId":"`+anyChannel+`","text":"`+g.name("text")+`"}`)
	}
	g.callbacks = append(g.callbacks, args)
	return args
}

// stream returns a call with parts of a streamed answer: mostly the next ones of its text,
// which depends on the item alone.
func (g *callGenerator) stream() []string {
	item := g.item()
	newest := g.IntN(3)
	count := newest + g.IntN(3)
	args := []string{item.digest, item.kind, item.id, g.name("callback"), "+", g.epoch, pick(g, []string{"", "1", "1"}), "", fmt.Sprint(newest)}
	if item.kind == "bot" {
		args[2] = ""
	}
	for i := range count {
		digest := fmt.Sprintf("part%04d", i)
		if g.chance(3) {
			digest = "otherone"
		}
		args[4] += digest
		if i >= count-newest {
			args = append(args, `{"kind":"llm_part","channelId":"`+anyChannel+`","text":"`+g.name("text")+`"}`)
		}
	}
	if g.chance(30) {
		args[4] += ".end"
		args[7] = `{"of": "` + item.id + `"}`
		args = append(args, `{"kind":"llm_result","channelId":"`+anyChannel+`"}`)
	}
	return args
}

// record stores what later calls need from the outcome of a call.
func (g *callGenerator) record(script string, args []string, outcome string) {
	switch {
	case script == "connect" && strings.Contains(outcome, "attached"):
		g.owner = args[0]
	case script == "claim" && strings.Contains(outcome, "claimed"):
		g.token = args[1]
	}
	if strings.HasPrefix(outcome, "reply: ") && strings.Contains(outcome[:min(60, len(outcome))], `"lost"`) {
		g.pending = append(g.pending, []string{"claim", "runtime", g.name("token"), "3600000", "attach", ""},
			append([]string{"connect"}, g.connect(g.name("connection"))...))
	}
	for name, value := range map[string]*string{"outLast": &g.newest, "epoch": &g.epoch, "connections": &g.number, "inLast": &g.lastEntry} {
		if _, rest, ok := strings.Cut(outcome, "\n"+name+" = "); ok {
			*value, _, _ = strings.Cut(rest, "\n")
		}
	}
	g.first = ""
	head := ""
	for line := range strings.SplitSeq(outcome, "\n") {
		if notice, ok := strings.CutPrefix(line, kv.RuntimeTopic(anyChannel)+" E"); ok {
			g.positions = append(g.positions, strings.Fields(notice)[1])
		}
		if queue, ok := strings.CutPrefix(line, "queue = "); ok {
			head, _, _ = strings.Cut(queue, " ")
		}
		if digest, item, ok := strings.Cut(line, " = awaiting "); ok && strings.HasPrefix(item, head+" ") {
			g.first = digest
		}
	}
}
