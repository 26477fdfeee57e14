package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/uuid"
	"github.com/redis/rueidis"

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
func callbacks(at *site, s settings) error {
	t, peer, err := at.startBoth("script")
	if err != nil {
		return err
	}
	defer t.kill()
	defer peer.stop()
	if err := t.run(nil, "limits", "set", "--tier", "webhook", "--max", "1000000000", "--window", "24h"); err != nil {
		return err
	}
	runtime, err := calls.New(calls.Options{Store: storeOptions(at.redisURL), Name: "bench"})
	if err != nil {
		return err
	}
	defer runtime.Close()

	each := int(callbacksPerSecond * s.span.Seconds() / float64(s.connections))
	round := func(p *process, addr string) func() (result, error) {
		return func() (r result, err error) {
			sources := make([]source, s.connections)
			if _, err := parallel(s.connections, s.connections, func(i int) error {
				channels, err := openCalls(runtime, callsPerConnection)
				if err == nil {
					sources[i], err = provider(channels, addr, each)
				}
				return err
			}); err != nil {
				return r, err
			}
			return at.measureCPU([]*process{p}, func() (result, error) { return load(to(addr), http.StatusAccepted, sources) })
		}
	}
	ours, baseline := round(t.process, t.addr), round(peer, peer.line)
	if _, err := interleave(1, ours, baseline); err != nil {
		return err
	}
	fmt.Printf("bot callbacks of %d bytes; %d connections with %d calls each\n", len(botBody(uuid.NewString())), s.connections, callsPerConnection)
	c, err := interleave(s.rounds, ours, baseline)
	if err != nil {
		return err
	}
	limit, err := at.scriptLimit()
	if err != nil {
		return err
	}
	c.print("callbacks", "plain EVALSHA", "callbacks", "(target: at least 0.80)")
	fmt.Printf("  %-18s %8.0f scripts/s (telapi: %.2f of it, plain EVALSHA: %.2f)\n", "redis-benchmark", limit, c.telapi.perSecond/limit, c.baseline.perSecond/limit)
	return nil
}

// openCalls opens channels without a session.
func openCalls(runtime *calls.Runtime, n int) ([]*calls.Channel, error) {
	channels := make([]*calls.Channel, n)
	for i := range channels {
		var err error
		if channels[i], err = runtime.Open(context.Background(), calls.OpenOptions{
			ChannelID: uuid.NewString(), TeamID: "tm_1", EndpointID: "ep_1", CallID: "sip-1", Profile: []byte(botProfile)}); err != nil {
			return nil, err
		}
	}
	return channels, nil
}

// provider creates work items of the calls of a connection, closes the calls, and
// returns the callbacks: those of one call are in order, and calls alternate.
func provider(channels []*calls.Channel, addr string, count int) (source, error) {
	ctx := context.Background()
	requests := make([][]byte, 0, count)
	for i := range count {
		c := channels[i%len(channels)]
		item, err := c.Await(ctx, calls.AwaitOptions{})
		if err != nil {
			return nil, err
		}
		body := botBody(c.ID)
		requests = append(requests, fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\ntoken: %s\r\nContent-Length: %d\r\n\r\n%s",
			item.Path, addr, item.Token, len(body), body))
	}
	for _, c := range channels {
		if err := c.Close(ctx); err != nil {
			return nil, err
		}
	}
	return func() (next []byte) {
		if len(requests) > 0 {
			next, requests = requests[0], requests[1:]
		}
		return next
	}, nil
}

// minimalScript is the minimum that a callback needs in the store.
const minimalScript = `local known = redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], 'consumed', 'PX', 3600000)
redis.call('XADD', KEYS[2], '*', 'entry', ARGV[1])
redis.call('PUBLISH', KEYS[2], 'notice')
return known or 'awaited'`

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
func peerScript(redisURL []byte) (http.HandlerFunc, error) {
	client, err := plainRedis(string(redisURL))
	script := rueidis.NewLuaScript(minimalScript)
	return func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		var body plainBody
		if err == nil {
			err = json.Unmarshal(raw, &body)
		}
		if err == nil {
			err = script.Exec(r.Context(), client, []string{"token:" + r.Header.Get("token"), "stream:" + body.Conversation.Identifier.ID}, []string{rueidis.BinaryString(raw)}).Error()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		receipt := []byte(`{"status":"accepted"}`)
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(receipt)))
		w.WriteHeader(http.StatusAccepted)
		_, _ = w.Write(receipt)
	}, err
}

// scriptLimit returns how often per second Redis alone runs minimalScript.
func (s *site) scriptLimit() (float64, error) {
	client, err := s.redis()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	digest, err := client.Do(context.Background(), client.B().ScriptLoad().Script(minimalScript).Build()).ToString()
	if err != nil {
		return 0, err
	}
	u, err := url.Parse(s.redisURL)
	if err != nil {
		return 0, err
	}
	out, err := exec.Command("redis-benchmark", "-p", u.Port(), "-c", "32", "-P", "16", "-n", "200000", "-r", "100000", "--csv",
		"EVALSHA", digest, "2", "token:__rand_int__", "limit", botBody(uuid.NewString())).Output()
	if err != nil {
		return 0, fmt.Errorf("redis-benchmark: %w", err)
	}
	// The command comes first and may contain separators, so count from the end.
	columns := strings.Split(string(out), `","`)
	if len(columns) < 7 {
		return 0, fmt.Errorf("redis-benchmark printed %q", out)
	}
	return strconv.ParseFloat(columns[len(columns)-7], 64)
}
