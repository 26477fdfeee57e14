package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"telapi/callruntime"
	"telapi/callruntime/wire"
)

const (
	answerSentences = 12
	tokensPerSecond = 30 // of a model
	answerTokens    = 60
	sentencePause   = 2 * time.Millisecond // so that each sentence arrives by itself
)

var answerText = strings.TrimSpace(strings.Repeat("Your parcel left the depot this morning and arrives before noon. ", answerSentences))

// modelCall is a channel that asks a language model.
type modelCall struct {
	*callruntime.Channel
	conn net.Conn // of the provider
	in   *bufio.Reader
	addr string
}

// ask returns the header of the request with an answer.
func (c *modelCall) ask(contentType, length string) string {
	item := must(c.Await(context.Background(), wire.Await{Kind: wire.LLMItem}))
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\ntoken: %s\r\n%s\r\n\r\n", must(url.Parse(item.URL)).RequestURI(), c.addr, contentType, item.Token, length)
}

func (c *modelCall) write(text string) { must(c.conn.Write([]byte(text))) }

// chunk returns a line of a streamed answer as a chunk of HTTP.
func chunk(line string) string { return fmt.Sprintf("%x\r\n%s\n\r\n", len(line)+1, line) }

func deltaLine(text string) string { return chunk(fmt.Sprintf(`{"delta":%q}`, text)) }

const (
	streamed  = "Transfer-Encoding: chunked"
	streamEnd = "0\r\n\r\n"
)

func plainAnswer(text string) (length, body string) {
	body = fmt.Sprintf(`{"content":%q}`, text)
	return fmt.Sprint("Content-Length: ", len(body)), body
}

// finish receives the entries up to the result and reads the response.
func (c *modelCall) finish() {
	for {
		d := must(c.Receive(context.Background()))
		if d.Entry.Kind == wire.KindLLMResult {
			check(c.Commit(context.Background(), d.Position))
			break
		}
	}
	if status, err := readResponse(c.in); err != nil || status != http.StatusAccepted {
		check(fmt.Errorf("status %d, %v", status, err))
	}
}

// first receives the first entry of an answer and returns the time since start.
func (c *modelCall) first(start time.Time) time.Duration {
	d := must(c.Receive(context.Background()))
	took := time.Since(start)
	if d.Entry.Kind == wire.KindLLMResult {
		check(c.Commit(context.Background(), d.Position))
		must(readResponse(c.in))
	} else {
		c.finish()
	}
	return took
}

// sendPlain sends an answer in one body, at a time, and returns how long it takes to the runtime.
func (c *modelCall) sendPlain(at time.Time) time.Duration {
	length, body := plainAnswer(answerText)
	head := c.ask("application/json", length)
	time.Sleep(time.Until(at))
	start := time.Now()
	c.write(head + body)
	return c.first(start)
}

// sendStream sends an answer that streams, and returns how long its first sentence takes to the
// runtime from the time at which it is complete.
func (c *modelCall) sendStream(at time.Time) time.Duration {
	first, rest, _ := strings.Cut(answerText, ". ")
	c.write(c.ask("application/x-ndjson", streamed) + deltaLine(first+". "))
	time.Sleep(time.Until(at))
	start := time.Now()
	c.write(deltaLine(rest[:8]))
	d := must(c.Receive(context.Background()))
	took := time.Since(start)
	if d.Entry.Kind != wire.KindLLMPart {
		check(fmt.Errorf("first entry %s", d.Entry.Kind))
	}
	c.write(deltaLine(rest[8:]) + chunk(`{"done":true}`) + streamEnd)
	c.finish()
	return took
}

// streams compares answers that stream with answers in one body: how soon the runtime has the first
// sentence, what they cost, and when a caller can hear a slow model.
func streams(at *site, s settings) {
	t := at.startTelapi()
	defer t.kill()
	runtime := t.connectRuntime()
	defer runtime.Close()
	calls := make([]*modelCall, s.connections)
	parallel(len(calls), len(calls), func(i int) {
		ch := must(runtime.Open(context.Background(), uuid.NewString(), wire.Open{Endpoint: t.endpoint}))
		conn := connectAll(nil, 1, t.addr)[0]
		calls[i] = &modelCall{ch, conn, bufio.NewReaderSize(conn, 16<<10), t.addr}
	})
	fmt.Printf("answers of %d sentences and %d bytes; %d channels\n", answerSentences, len(answerText), s.connections)
	streamLatency(calls, s)
	firstText(calls[0])
	firstAudio(at)
	streamCost(at, t, calls, s)
}

// streamLatency measures answers of both kinds in turn at a fixed rate, so that both meet the same load.
func streamLatency(calls []*modelCall, s settings) {
	each := max(2, int(arrivalsPerSecond*s.span.Seconds()/float64(len(calls))))
	var p50, p99 [2][]float64
	var ratios []float64
	for round := range arrivalRounds*s.rounds + 1 {
		took := make([][2][]time.Duration, len(calls))
		interval, start := time.Duration(len(calls))*time.Second/arrivalsPerSecond, time.Now().Add(20*time.Millisecond)
		parallel(len(calls), len(calls), func(i int) {
			phase := interval * time.Duration(i) / time.Duration(len(calls))
			for n := range each {
				side := (i + n) % 2
				send := [2]func(*modelCall, time.Time) time.Duration{(*modelCall).sendStream, (*modelCall).sendPlain}[side]
				took[i][side] = append(took[i][side], send(calls[i], start.Add(interval*time.Duration(n)+phase)))
			}
		})
		if round == 0 { // warms up
			continue
		}
		for side := range p99 {
			var all []time.Duration
			for _, list := range took {
				all = append(all, list[side]...)
			}
			slices.Sort(all)
			p50[side] = append(p50[side], all[len(all)/2].Seconds())
			p99[side] = append(p99[side], all[len(all)*99/100].Seconds())
		}
		ratios = append(ratios, p99[0][round-1]/p99[1][round-1])
	}
	for side, name := range []string{"first sentence", "whole body"} {
		fmt.Printf("  %-14s complete → runtime: p50 %6.2f ms   p99 %6.2f ms\n", name, 1e3*middle(p50[side]), 1e3*middle(p99[side]))
	}
	fmt.Printf("  %-14s p99 %.2f (target: at most 1.50)\n", "ratio", middle(ratios))
}

// streamCost compares the CPU time of the service and of Redis.
func streamCost(at *site, t *telapi, calls []*modelCall, s settings) {
	cost := func(run func(*modelCall)) float64 {
		r := at.measureCPU([]*process{t.process}, func() result {
			start, count := time.Now(), 0
			var mu sync.Mutex
			parallel(len(calls), len(calls), func(i int) {
				n := 0
				for ; time.Since(start) < s.span; n++ {
					run(calls[i])
				}
				mu.Lock()
				defer mu.Unlock()
				count += n
			})
			return result{perSecond: float64(count) / time.Since(start).Seconds()}
		})
		return r.costs[0] + r.costs[1]
	}
	sentences := strings.SplitAfter(answerText, ". ")
	var whole, once, each []float64
	for range s.rounds + 1 {
		whole = append(whole, cost(func(c *modelCall) { c.sendPlain(time.Time{}) }))
		once = append(once, cost(func(c *modelCall) {
			body := ""
			for _, sentence := range sentences {
				body += deltaLine(sentence)
			}
			c.write(c.ask("application/x-ndjson", streamed) + body + chunk(`{"done":true}`) + streamEnd)
			c.finish()
		}))
		each = append(each, cost(func(c *modelCall) {
			c.write(c.ask("application/x-ndjson", streamed))
			for _, sentence := range sentences {
				c.write(deltaLine(sentence))
				time.Sleep(sentencePause)
			}
			c.write(chunk(`{"done":true}`) + streamEnd)
			c.finish()
		}))
	}
	base := middle(whole[1:])
	fmt.Printf("  CPU µs of service and Redis per answer, with its request and delivery: whole body %.0f; stream in one piece %.0f, ratio %.2f (target: at most 2.00); sentence by sentence %.0f, ratio %.2f\n",
		base, middle(once[1:]), middle(once[1:])/base, middle(each[1:]), middle(each[1:])/base)
}

// answer returns the tokens of an answer.
func answer() []string { return strings.SplitAfter(answerText, " ")[:answerTokens] }

// firstText measures when the first text of a slow model arrives at the runtime.
func firstText(c *modelCall) {
	tokens := answer()
	pause := func() { time.Sleep(time.Second / tokensPerSecond) }
	start := time.Now()
	for range tokens {
		pause()
	}
	length, body := plainAnswer(strings.Join(tokens, ""))
	c.write(c.ask("application/json", length) + body)
	whole := c.first(start)

	start = time.Now()
	c.write(c.ask("application/x-ndjson", streamed))
	done := make(chan time.Duration)
	go func() { done <- c.first(start) }()
	for _, token := range tokens {
		pause()
		c.write(deltaLine(token))
	}
	c.write(chunk(`{"done":true}`) + streamEnd)
	first := <-done
	fmt.Printf("  a model with %d tokens/s and %d tokens: first text after %.2f s, in one body after %.2f s, ratio %.2f (target: less than 0.50)\n",
		tokensPerSecond, answerTokens, first.Seconds(), whole.Seconds(), first.Seconds()/whole.Seconds())
}
