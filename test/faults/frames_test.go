package faults

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"telapi/callruntime/wire"
	"telapi/test/boot"
	"telapi/test/talk"
)

// Whatever is wrong with a frame is answered with an error that says so, and
// the socket stays open for the next one.
func TestInvalidFrameIsAnsweredWithError(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, _ := p.page(t)
		id := uuid.NewString()
		good := talk.Frame("chat", b.Session, id, "chat", `{"text":"x"}`)
		other := func(old, changed string) string {
			frame := strings.Replace(good, old, changed, 1)
			if frame == good {
				t.Fatalf("%s is not in %s", old, good)
			}
			return frame
		}
		const invalid, malformed = `"code":"VALIDATION_ERROR"`, `"code":"MALFORMED_JSON"`
		for name, c := range map[string]struct{ frame, code, names string }{
			"another session":         {other(b.Session, uuid.NewString()), invalid, "/sessionId"},
			"no session":              {other(`"sessionId"`, `"session"`), invalid, "/sessionId"},
			"the other direction":     {other("to_ari", "to_browser"), invalid, "/direction"},
			"no direction":            {other("to_ari", "up"), invalid, "/direction"},
			"an unknown type":         {other(`"type":"chat"`, `"type":"shout"`), invalid, "/type"},
			"a type of another case":  {other(`"type":"chat"`, `"type":"Chat"`), invalid, "/type"},
			"another type's object":   {other(`"type":"chat"`, `"type":"action"`), invalid, "/action"},
			"a text for an object":    {other(`{"text":"x"}`, `"x"`), invalid, "/chat"},
			"a list for an object":    {other(`{"text":"x"}`, `[]`), invalid, "/chat"},
			"null for an object":      {other(`{"text":"x"}`, `null`), invalid, "/chat"},
			"no uuid":                 {other(id, "4711"), invalid, "/messageId"},
			"a uuid in braces":        {other(id, "{"+id+"}"), invalid, "/messageId"},
			"a uuid without dashes":   {other(id, strings.ReplaceAll(id, "-", "")), invalid, "/messageId"},
			"a text for a time":       {other(`"timestamp":`, `"timestamp":"soon","was":`), invalid, "/timestamp"},
			"a negative time":         {other(`"timestamp":`, `"timestamp":-`), invalid, "/timestamp"},
			"no time":                 {other(`"timestamp"`, `"time"`), invalid, "/timestamp"},
			"a member that is double": {other(`"type"`, `"chat":{},"type"`), malformed, ""},
			"half a frame":            {good[:len(good)/2], malformed, ""},
			"two frames in one":       {good + good, malformed, ""},
			"a list":                  {"[" + good + "]", invalid, ""},
			"nothing":                 {"", malformed, ""},
			"no JSON":                 {"hello", malformed, ""},
			"absurd nesting":          {other(`{"text":"x"}`, `{"text":`+strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000)+`}`), malformed, ""},
		} {
			b.Write(c.frame)
			m := b.Expect(`"type":"error"`, c.code, c.names, `"fatal":false`)
			if c.names != "" && c.names != "/messageId" && !strings.Contains(m.Raw, `"relatesTo":"`+id) {
				t.Errorf("%s: the error does not say which frame it means: %s", name, m.Raw)
			}
			b.Expect(`"event":"ack"`, b.Chat("a good one"))
		}
		if err := b.Conn.WriteMessage(websocket.BinaryMessage, []byte(good)); err != nil {
			t.Fatal(err)
		}
		b.Expect(`"type":"error"`, malformed)
		b.Write(good)
		b.Expect(`"event":"ack"`, id)
	})
}

func TestTenInvalidFramesCloseSocket(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, _ := p.page(t)
		for range 2 { // a good one in between begins the count anew
			for range 9 {
				b.Write("bad")
				b.Expect(`"type":"error"`)
			}
			b.Expect(`"event":"ack"`, b.Chat("good"))
		}
		for range 10 {
			b.Write("bad")
			b.Expect(`"type":"error"`)
		}
		if code := b.CloseCode(); code != 4501 {
			t.Errorf("closed with %d", code)
		}
	})
}

// Objects of other types than the frame's own do not reach the runtime, and a
// ping is answered.
func TestUnrelatedFrameObjectsAreDropped(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, _, ch := p.conversation(t)
		id := uuid.NewString()
		b.Write(strings.Replace(talk.Frame("chat", b.Session, id, "chat", `{"text":"x"}`), `"chat":{`, `"audio":{"data":"y"},"status":{"event":"ready"},"streamId":"z","chat":{`, 1))
		b.Expect(`"event":"ack"`, id)
		for {
			e := talk.Receive(t, ch)
			if e.Kind != wire.KindFrame {
				continue
			}
			if m := e.Message; string(m.Chat) != `{"text":"x"}` || m.Audio != nil || m.Status != nil || m.StreamID != "" || m.MessageID != id {
				t.Errorf("the runtime gets %+v", m)
			}
			break
		}
		b.Write(fmt.Sprintf(`{"type":"ping","sessionId":%q,"messageId":%q,"timestamp":1,"direction":"to_ari"}`, b.Session, uuid.NewString()))
		b.Expect(`"type":"pong"`, `"direction":"to_browser"`)
	})
}

func TestFrameSizeLimit(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, _ := p.page(t)
		frame := func(size int) (id, frame string) {
			id = uuid.NewString()
			bare := talk.Frame("chat", b.Session, id, "chat", `{"text":""}`)
			return id, strings.Replace(bare, `"text":"`, `"text":"`+strings.Repeat("x", size-len(bare)), 1)
		}
		id, full := frame(64 << 10)
		b.Write(full)
		b.Expect(`"event":"ack"`, id)
		_, over := frame(64<<10 + 1)
		b.Write(over)
		if code := b.CloseCode(); code != 1009 {
			t.Errorf("64 KiB and a byte: closed with %d", code)
		}
		for deadline := time.Now().Add(10 * time.Second); !metric(t, p.Instance, `telapi_sockets_closed_total{code="1009"} 1`); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the close is not counted as what it was")
			}
		}

		b, _ = p.page(t)
		b.Write("{\"type\":\"\xff\"}")
		if code := b.CloseCode(); code != 1007 {
			t.Errorf("no UTF-8: closed with %d", code)
		}
	})
}

// A page that says good-bye and closes its socket is heard, though the network
// brings both at once.
func TestFrameBeforeCloseIsDelivered(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, _, ch := p.conversation(t)
		last := fragment(true, talk.Frame("chat", b.Session, uuid.NewString(), "chat", `{"text":"good-bye"}`))
		last[0] |= 0x80 // it is whole
		closing := []byte{0x80 | websocket.CloseMessage, 0x80 | 2, 0, 0, 0, 0, 0x03, 0xe8}
		if _, err := b.Conn.NetConn().Write(append(last, closing...)); err != nil {
			t.Fatal(err)
		}
		var story []string
		for !slices.Contains(story, "disconnected") {
			e := talk.Receive(t, ch)
			story = append(story, string(e.Kind), e.Event)
		}
		if !slices.Contains(story, string(wire.KindFrame)) {
			t.Errorf("the runtime was told %q", story)
		}
	})
}

// What other clients than browsers ask of a socket themselves. The answer comes
// before that to whatever follows, and repeats what was asked.
func TestProtocolPingIsAnswered(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, _ := p.page(t)
		var answers []string
		b.Conn.SetPongHandler(func(data string) error { answers = append(answers, data); return nil })
		for _, asked := range []string{"", "are you there?"} {
			if err := b.Conn.WriteControl(websocket.PingMessage, []byte(asked), time.Now().Add(10*time.Second)); err != nil {
				t.Fatal(err)
			}
			b.Expect(`"event":"ack"`, b.Chat("hello"))
		}
		if want := []string{"", "are you there?"}; !slices.Equal(answers, want) {
			t.Errorf("the answers are %q", answers)
		}
	})
}

// fragment is a part of a text message on the wire, masked with zeros.
func fragment(first bool, payload string) []byte {
	head := []byte{0, 0x80 | 126}
	if first {
		head[0] = websocket.TextMessage
	}
	head = binary.BigEndian.AppendUint16(head, uint16(len(payload)))
	return append(append(head, 0, 0, 0, 0), payload...)
}

// A message that never ends is given up: for its size, or after two pings that
// were not answered.
func TestEndlessFragmentsAreClosed(t *testing.T) {
	t.Parallel()
	backends(t, boot.Env{"SESSION_PING_INTERVAL": "1s"}, func(t *testing.T, p *place) {
		for name, c := range map[string]struct {
			payload string
			code    int
		}{
			"small ones": {"x", 4002},
			"large ones": {strings.Repeat("x", 32<<10), 1009},
		} {
			b, _ := p.page(t)
			b.Conn.SetPingHandler(func(string) error { return nil })
			over := make(chan struct{})
			go func() {
				for first := true; ; first = false {
					if _, err := b.Conn.NetConn().Write(fragment(first, c.payload)); err != nil {
						return
					}
					select {
					case <-over:
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
			}()
			if code := b.CloseCode(); code != c.code {
				t.Errorf("%s: closed with %d", name, code)
			}
			close(over)
		}
	})
}

// Ten times the rate closes the socket; what was acknowledged before is with
// the runtime, and the page can go on.
func TestFrameFloodClosesSocket(t *testing.T) {
	backends(t, nil, func(t *testing.T, p *place) {
		b, token, ch := p.conversation(t)
		bystander, _ := p.page(t)
		acknowledged, began := 0, time.Now()
		for range 600 {
			if b.Conn.WriteMessage(websocket.TextMessage, []byte(talk.Frame("chat", b.Session, uuid.NewString(), "chat", "{}"))) != nil {
				break // closed already
			}
		}
		for {
			m, err := b.Read()
			if websocket.IsCloseError(err, 4004) {
				break
			}
			if err != nil {
				t.Fatalf("not closed with 4004: %v", err)
			}
			if strings.Contains(m.Raw, `"event":"ack"`) {
				acknowledged++
			}
		}
		if took := time.Since(began); acknowledged < 60 || float64(acknowledged) > 60*(1+took.Seconds()) {
			t.Errorf("%d frames were taken within %s", acknowledged, took)
		}
		received := 0
		for received < acknowledged {
			if talk.Receive(t, ch).Kind == wire.KindFrame {
				received++
			}
		}
		bystander.Expect(`"event":"ack"`, bystander.Chat("unharmed"))
		again := talk.Connect(t, p.Instance, b.Session, token, "")
		again.Expect(`"event":"ready"`)
		goesOn(t, again, ch)
	})
}
