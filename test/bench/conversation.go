package main

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gorilla/websocket"
)

const (
	turnsEach = 10
	// laterWork is how long servers still work after a round, such as on commits.
	laterWork = time.Second
	// Latency is measured at a rate at which no server is busy.
	calmRate = 200
	// unpaced turns follow each other at once.
	unpaced = 0
	botText = "Your parcel left the depot this morning. It arrives before noon, and the driver rings twice."
)

// talks is a server that conversations run on, with a runtime of its own.
type talks interface {
	servers() []*process
	open() *browser        // requests a token and opens the socket
	accept() (talk, error) // waits for the runtime's next conversation, until close
	close()
}

// talk is a conversation as its runtime sees it.
type talk interface {
	receive() (kind said)                  // waits for the next entry
	await() (url, token, channelID string) // registers a token for the bot
	send(text string)                      // sends a text to the browser, and commits what was received
	end()
}

// said is what a runtime or a browser received.
type said int

const (
	other said = iota
	userSaid
	botSaid
	acknowledgement
)

// browser is the socket of a conversation.
type browser struct {
	conn *websocket.Conn
	chat func() string           // returns the next frame to send
	kind func(frame []byte) said // of a frame that was received
}

// turn sends a frame, and waits until it is acknowledged and answered.
func (b *browser) turn() {
	check(b.conn.WriteMessage(websocket.TextMessage, []byte(b.chat())))
	for missing := []said{acknowledgement, botSaid}; len(missing) > 0; {
		kind := b.kind(must(read(b.conn)))
		missing = slices.DeleteFunc(missing, func(k said) bool { return k == kind })
	}
}

// awaitEnd waits until the server has closed the socket.
func (b *browser) awaitEnd() {
	var err error
	for err == nil {
		_, err = read(b.conn)
	}
	if closed := (*websocket.CloseError)(nil); !errors.As(err, &closed) {
		check(err)
	}
	check(b.conn.Close())
}

// serve is the runtime: it handles each conversation in its own goroutine, and the bot
// answers each question.
func serve(server talks) {
	for c, err := server.accept(); err == nil; c, err = server.accept() {
		go func() {
			for answered := 0; answered < turnsEach; {
				switch c.receive() {
				case userSaid:
					url, token, channelID := c.await()
					go request(http.MethodPost, url, botAnswer(channelID), http.StatusAccepted, "token", token)
				case botSaid:
					c.send(botText)
					answered++
				}
			}
			c.end()
		}()
	}
}

// botAnswer returns a bot's answer of about 300 bytes.
func botAnswer(channelID string) []byte {
	return fmt.Appendf(nil, `{"conversation":{"identifier":{"id":%q}},"messages":{"timestamp":"2026-11-15T09:30:00Z",`+
		`"message":[{"messageId":1,"content":{"textMessage":{"textPlain":%q}}}]}}`, channelID, botText)
}

// converse runs conversations, atATime at a time. All browsers together start turnsPerSecond,
// but none before the end of its last turn.
func (s *site) converse(server talks, atATime, count, turnsPerSecond int) result {
	took := make([][]time.Duration, count)
	var interval time.Duration
	if turnsPerSecond != unpaced {
		interval = time.Second * time.Duration(atATime) / time.Duration(turnsPerSecond)
	}
	cpu := s.cpuTimes(server.servers())
	before, start := cpu(), time.Now()
	parallel(count, atATime, func(i int) {
		b := server.open()
		due := time.Now()
		for range turnsEach {
			time.Sleep(time.Until(due))
			if turnsPerSecond == unpaced {
				due = time.Now()
			}
			b.turn()
			took[i] = append(took[i], time.Since(due))
			due = due.Add(interval)
		}
		b.awaitEnd()
	})
	span := time.Since(start)
	<-time.After(laterWork)
	r := newResult(slices.Concat(took...), span, 0)
	for i, after := range cpu() {
		r.costs = append(r.costs, (after-before[i])*1e6/float64(count*turnsEach))
	}
	return r
}

// conversation compares whole conversations with a server that a team could write by hand.
// telapi records sessions in SQLite, so that its own CPU time includes that of the database.
func conversation(at *site, s settings) {
	fmt.Printf("token, socket, %d turns (frame with a work item, callback, send, commit), end; %d at a time\n", turnsEach, s.connections)
	ours := at.startTalks("DATABASE_URL=")
	defer ours.close()
	sides := []talks{ours}
	if peer := at.startNode(); peer != nil {
		defer peer.close()
		go serve(peer)
		sides = append(sides, peer)
	}
	var rows figures
	for _, side := range sides { // warm up
		at.converse(side, s.connections, 8*s.connections, unpaced)
	}
	for round := range s.rounds {
		for j := range sides {
			i := (round + j) % len(sides)
			busy := at.converse(sides[i], s.connections, 8*s.connections, unpaced)
			calm := at.converse(sides[i], 2*s.connections, 4*s.connections, calmRate)
			rows.add(i, "CPU µs each turn: server", busy.costs[0])
			rows.add(i, "CPU µs each turn: Redis", busy.costs[1])
			rows.add(i, "CPU µs each turn: server and Redis", busy.costs[0]+busy.costs[1])
			rows.add(i, "CPU µs each turn: bench, with the runtime", busy.costs[2])
			rows.add(i, "turns/s", busy.perSecond)
			rows.add(i, fmt.Sprintf("ms each turn at %d/s: p50", calmRate), calm.p50.Seconds()*1e3)
			rows.add(i, fmt.Sprintf("ms each turn at %d/s: p99", calmRate), calm.p99.Seconds()*1e3)
		}
	}
	rows.print("telapi", "Socket.IO")
	soon, late := at.channelMemory(*ours.newest.Load())
	fmt.Printf("  %-44s %8.0f   after ten minutes %.0f\n", "bytes in Redis, ended conversation", soon, late)
	at.printScripts(s.connections*turnsEach, func() { at.converse(ours, s.connections, s.connections, unpaced) })
}

// figures are the figures of each round, by name and side.
type figures struct {
	names  []string
	values map[string]*[2][]float64
}

func (f *figures) add(side int, name string, value float64) {
	if f.values[name] == nil {
		if f.values == nil {
			f.values = map[string]*[2][]float64{}
		}
		f.names, f.values[name] = append(f.names, name), &[2][]float64{}
	}
	f.values[name][side] = append(f.values[name][side], value)
}

// print prints medians. A ratio is the median of the ratios of adjacent rounds.
func (f *figures) print(ours, theirs string) {
	fmt.Printf("  %-44s %8s %9s   ratio (lowest to highest)\n", "", ours, theirs)
	for _, name := range f.names {
		values := f.values[name]
		fmt.Printf("  %-44s %8.1f", name, middle(values[0]))
		if len(values[1]) > 0 {
			var ratios []float64
			for i, value := range values[0] {
				ratios = append(ratios, value/values[1][i])
			}
			fmt.Printf(" %9.1f   %.2f (%.2f to %.2f)", middle(values[1]), middle(ratios), slices.Min(ratios), slices.Max(ratios))
		}
		fmt.Println()
	}
}
