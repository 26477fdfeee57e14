package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"telapi/callruntime/wire"
	"telapi/internal/calls"
)

const (
	callbacksPerSecond = 8_000 // credentials are created before the round
	callsPerConnection = 4
)

// botProfile is a gateway profile that allows the commands of botBody.
const botProfile = `{"commandSources":["bot"],"commandPolicies":[{"type":"hangup","enabled":true,"waitForSilence":true},
	{"type":"transfer","enabled":true,"allowedTargets":["tel:+49*"]},{"type":"update_dtmf_config","enabled":true}],"actions":{"hangup":{"reason":"done"}}}`

// botBody returns a bot answer of 1 KB with a text, an event and a command.
func botBody(channelID string) string {
	head := fmt.Sprintf(`{"conversation":{"identifier":{"id":%q,"name":"Parcel desk"}},"from":{"identifier":{"id":"bot-7","name":"Ada"}},`, channelID)
	tail := `"messages":{"timestamp":"2026-11-15T09:30:00Z","message":[{"messageId":1,"sequence":1,"content":{"textMessage":{"textPlain":%q},` +
		`"event":{"typing":{"enable":true,"duration":800},"custom":{"name":"config","value":{"sessionParams":{"bargeIn":true,"bargeInMinWordCount":2}}}}}}]}}`
	text := strings.Repeat("Your parcel left the depot this morning and arrives before noon. ", 16)
	return head + fmt.Sprintf(tail, text[:1024-len(head)-len(tail)])
}

// callbacks compares bot callbacks with a handler that decodes the same body and
// runs one script of four commands.
func callbacks(at *site, s settings) {
	t, peer := at.startTelapi(), at.startPeer("script")
	defer t.kill()
	defer peer.kill()
	runtime := at.directRuntime()
	defer runtime.Close()
	count := int(callbacksPerSecond * s.span.Seconds())
	round := func(p *process, addr string) func() result {
		return func() result {
			sources := providers(runtime, s.connections, callsPerConnection, count, addr)
			return at.measureCPU([]*process{p}, func() result {
				return load(connectAll(nil, s.connections, addr), http.StatusAccepted, sources)
			})
		}
	}
	ours, baseline := round(t.process, t.addr), round(peer, peer.line)
	interleave(1, ours, baseline)
	fmt.Printf("bot callbacks of %d bytes; %d connections with %d calls each\n", len(botBody(uuid.NewString())), s.connections, callsPerConnection)
	c := interleave(s.rounds, ours, baseline)
	limit := at.scriptLimit()
	c.print("callbacks", "plain EVALSHA", "(target: at least 0.80)")
	fmt.Printf("  %-44s %8.0f scripts/s (telapi: %.2f of it, plain EVALSHA: %.2f)\n",
		"redis-benchmark", limit, c.telapi.perSecond/limit, c.baseline.perSecond/limit)
}

// openCalls opens channels without a session.
func openCalls(runtime *calls.Runtime, n int) []*calls.Channel {
	channels := make([]*calls.Channel, n)
	for i := range channels {
		channels[i] = must(runtime.Open(context.Background(), calls.Claim{}, wire.Open{
			Request: wire.Request{Channel: uuid.NewString()}, Team: "tm_1", Endpoint: "ep_1", CallID: "sip-1", Profile: []byte(botProfile),
		}))
	}
	return channels
}

// callbackRequest returns the request with a bot's answer.
func callbackRequest(addr, path, token, channelID string) []byte {
	body := botBody(channelID)
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\ntoken: %s\r\nContent-Length: %d\r\n\r\n%s",
		path, addr, token, len(body), body)
}

// providers opens calls for each connection, creates work items, closes the calls, and
// returns the callbacks of each connection: those of one call are in order, and calls
// alternate. The connections use the addresses in turn.
func providers(runtime *calls.Runtime, connections, callsEach, count int, addrs ...string) []source {
	ctx := context.Background()
	sources := make([]source, connections)
	parallel(connections, connections, func(i int) {
		channels := openCalls(runtime, callsEach)
		var requests [][]byte
		for n := range count / connections {
			c := channels[n%len(channels)]
			item := must(c.Await(ctx, calls.AwaitOptions{}))
			requests = append(requests, callbackRequest(addrs[i%len(addrs)], item.Path, item.Token, c.ID))
		}
		for _, c := range channels {
			check(c.Close(ctx))
		}
		sources[i] = func() (next []byte) {
			if len(requests) > 0 {
				next, requests = requests[0], requests[1:]
			}
			return next
		}
	})
	return sources
}

// minimalScript is the minimum that a callback needs in the store.
const minimalScript = `local known = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], 'consumed', 'PX', 3600000)
redis.call('XADD', KEYS[2], '*', 'entry', ARGV[1])
redis.call('PUBLISH', KEYS[2], 'notice')
return known or 'awaited'`

var script = rueidis.NewLuaScript(minimalScript)

// plainBody is the body of botBody.
type plainBody struct {
	Conversation plainParty `json:"conversation"`
	From         plainParty `json:"from"`
	Messages     struct {
		Timestamp time.Time `json:"timestamp"`
		Message   []struct {
			MessageID float64 `json:"messageId"`
			Sequence  float64 `json:"sequence"`
			Content   struct {
				TextMessage struct {
					TextPlain string `json:"textPlain"`
				} `json:"textMessage"`
				Event struct {
					Typing struct {
						Enable   bool    `json:"enable"`
						Duration float64 `json:"duration"`
					} `json:"typing"`
					Custom struct {
						Name  string `json:"name"`
						Value struct {
							SessionParams struct {
								BargeIn             bool `json:"bargeIn"`
								BargeInMinWordCount int  `json:"bargeInMinWordCount"`
							} `json:"sessionParams"`
						} `json:"value"`
					} `json:"custom"`
				} `json:"event"`
			} `json:"content"`
		} `json:"message"`
	} `json:"messages"`
}

type plainParty struct {
	Identifier struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	} `json:"identifier"`
}

// peerScript decodes the body and runs minimalScript.
func peerScript(client rueidis.Client, w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var body plainBody
	if err == nil {
		err = json.Unmarshal(raw, &body)
	}
	if err == nil {
		keys := []string{"token:" + r.Header.Get("token"), "stream:" + body.Conversation.Identifier.ID}
		err = script.Exec(r.Context(), client, keys, []string{rueidis.BinaryString(raw)}).Error()
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	writeJSON(w, http.StatusAccepted, []byte(`{"status":"accepted"}`))
}

// scriptLimit returns how often per second Redis alone runs minimalScript.
func (s *site) scriptLimit() float64 {
	digest := s.redis[0].MustDo("SCRIPT", "LOAD", minimalScript)
	_, port, _ := net.SplitHostPort(s.redis[0].Addr())
	out := must(exec.Command("redis-benchmark", "-p", port, "-c", "32", "-P", "16", "-n", "200000", "-r", "100000", "--csv",
		"EVALSHA", must(digest.ToString()), "2", "token:__rand_int__", "limit", botBody(uuid.NewString())).Output())
	// The command comes first and may contain separators, so count from the end.
	columns := strings.Split(string(out), `","`)
	return must(strconv.ParseFloat(columns[len(columns)-7], 64))
}
