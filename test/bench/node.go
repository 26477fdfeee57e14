package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"
	"github.com/redis/rueidis"
)

// nodeTalks runs conversations on peer/server.mjs. Its runtime works on the streams in
// Redis, and keeps its positions in memory.
type nodeTalks struct {
	*process
	key             string
	client, blocked rueidis.Client // blocked has a connection for each XREAD that waits
	next            func() (rueidis.XRangeEntry, error)
}

// startNode installs the packages of the baseline server and starts it. It returns nil
// and prints what is missing if it cannot.
func (s *site) startNode() *nodeTalks {
	dir := filepath.Join("test", "bench", "peer")
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			fmt.Printf("  no baseline: %s is not on PATH\n", program)
			return nil
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err != nil { // npm writes it last
		if out, err := exec.Command("npm", "--prefix", dir, "--no-audit", "--no-fund", "ci").CombinedOutput(); err != nil {
			fmt.Printf("  no baseline: npm ci in %s: %v\n%s", dir, err, out)
			return nil
		}
	}
	n := &nodeTalks{key: uuid.NewString()}
	cmd := exec.Command("node", "server.mjs")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "NODE_ENV=production", "REDIS_URL="+s.redisURL, "API_KEY="+n.key, "TOKEN_SECRET="+uuid.NewString())
	n.process = start(cmd)
	options := s.storeOptions()
	options.DisableCache = true
	n.client = must(rueidis.NewClient(options))
	options.BlockingPoolSize, options.Dialer.KeepAlive = 1000, -1 // without pings on idle connections
	n.blocked = must(rueidis.NewClient(options))
	n.next = n.follow("talks")
	return n
}

func (n *nodeTalks) servers() []*process { return []*process{n.process} }

func (n *nodeTalks) close() {
	n.blocked.Close()
	n.client.Close()
	n.kill()
}

// follow returns a function that waits for the next entry of a stream.
func (n *nodeTalks) follow(stream string) func() (rueidis.XRangeEntry, error) {
	last, unread := "0", []rueidis.XRangeEntry(nil)
	return func() (entry rueidis.XRangeEntry, err error) {
		if len(unread) == 0 {
			xread := n.blocked.B().Xread().Count(100).Block(0).Streams().Key(stream).Id(last).Build()
			found, err := n.blocked.Do(context.Background(), xread).AsXRead()
			if err != nil {
				return entry, err
			}
			unread = found[stream]
		}
		entry, unread = unread[0], unread[1:]
		last = entry.ID
		return entry, nil
	}
}

func (n *nodeTalks) open() *browser {
	var created struct{ Token string }
	check(json.Unmarshal(request(http.MethodPost, n.line+"/token", nil, http.StatusCreated, "X-API-Key", n.key), &created))
	b := &browser{conn: dial("ws" + strings.TrimPrefix(n.line, "http") + "/socket.io/?EIO=4&transport=websocket")}
	check(b.conn.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, `40{"token":%q}`, created.Token)))
	if frame := must(read(b.conn)); !bytes.HasPrefix(frame, []byte("40")) {
		check(fmt.Errorf("socket.io: %s", frame))
	}
	sent := 0
	b.chat = func() string {
		sent++
		return fmt.Sprintf(`42%d["chat",%s]`, sent, chatPayload)
	}
	b.kind = func(frame []byte) said {
		switch string(frame[:min(2, len(frame))]) {
		case "42":
			return botSaid
		case "43":
			return acknowledgement
		case "2": // a ping
			check(b.conn.WriteMessage(websocket.TextMessage, []byte("3")))
		}
		return other
	}
	return b
}

func (n *nodeTalks) accept() (talk, error) {
	entry, err := n.next()
	id := entry.FieldValues["id"]
	return &nodeTalk{nodeTalks: n, id: id, next: n.follow("talk:" + id)}, err
}

type nodeTalk struct {
	*nodeTalks
	id   string
	next func() (rueidis.XRangeEntry, error)
}

func (c *nodeTalk) receive() said {
	fields := must(c.next()).FieldValues
	if chat, ok := fields["chat"]; ok {
		var decoded struct{ Text string }
		check(json.Unmarshal([]byte(chat), &decoded))
		return userSaid
	}
	if body, ok := fields["answer"]; ok {
		var decoded plainBody
		check(json.Unmarshal([]byte(body), &decoded))
		return botSaid
	}
	return other
}

func (c *nodeTalk) await() (url, token, channelID string) {
	token = uuid.NewString()
	c.do(c.client.B().Set().Key("answer:" + token).Value(c.id).ExSeconds(300).Build())
	return c.line + "/answers/" + c.id, token, c.id
}

func (c *nodeTalk) send(text string) {
	c.publish("3", fmt.Sprintf(`"packet":{"type":2,"nsp":"/","data":["message",{"text":%q}]}`, text))
}

func (c *nodeTalk) end() {
	c.publish("6", `"close":true`)
	c.do(c.client.B().Expire().Key("talk:" + c.id).Seconds(3600).Build())
}

// publish adds a message to the stream of Socket.IO's adapter. Type 3 sends a packet to the
// browsers of the conversation, type 6 disconnects them.
func (c *nodeTalk) publish(kind, member string) {
	data := fmt.Sprintf(`{"opts":{"rooms":[%q],"except":[],"flags":{}},%s}`, c.id, member)
	c.do(c.client.B().Xadd().Key("socket.io").Maxlen().Almost().Threshold("10000").Id("*").FieldValue().
		FieldValue("uid", "runtime").FieldValue("nsp", "/").FieldValue("type", kind).FieldValue("data", data).Build())
}

func (n *nodeTalks) do(command rueidis.Completed) {
	check(n.client.Do(context.Background(), command).Error())
}
