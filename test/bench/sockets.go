package main

import (
	"bytes"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"

	"telapi/test/testkit"
)

// dial opens a socket and reads the first frame.
func dial(url string, subprotocols ...string) *websocket.Conn {
	d := websocket.Dialer{Subprotocols: subprotocols, HandshakeTimeout: testkit.Timeout, ReadBufferSize: 1024, WriteBufferSize: 1024}
	conn, resp, err := d.Dial(url, nil)
	if err != nil {
		check(fmt.Errorf("open socket: %w: %+v", err, resp))
	}
	must(read(conn))
	return conn
}

func read(conn *websocket.Conn) (frame []byte, err error) {
	_ = conn.SetReadDeadline(time.Now().Add(testkit.Timeout))
	_, frame, err = conn.ReadMessage()
	return frame, err
}

func closeAll(conns []*websocket.Conn) {
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// parallel calls do n times with a number of workers and returns the calls per
// second.
func parallel(n, workers int, do func(i int)) (perSecond float64) {
	var group errgroup.Group
	group.SetLimit(workers)
	start := time.Now()
	for i := range n {
		group.Go(func() error {
			do(i)
			return nil
		})
	}
	check(group.Wait())
	return float64(n) / time.Since(start).Seconds()
}

// pipeline sends frames. receive waits for the oldest frame to arrive or to be
// acknowledged.
type pipeline struct {
	send, receive func() error
}

// run keeps inFlight frames in flight on every pipeline and measures throughput
// and latency.
func run(pipelines []pipeline, inFlight int, span time.Duration) result {
	var group sync.WaitGroup
	var mu sync.Mutex
	var latencies []time.Duration
	stop := time.Now().Add(span)
	for _, p := range pipelines {
		slots, sent := make(chan struct{}, inFlight), make(chan time.Time, inFlight)
		group.Go(func() {
			defer close(sent)
			for time.Now().Before(stop) {
				slots <- struct{}{}
				sent <- time.Now()
				check(p.send())
			}
		})
		group.Go(func() {
			var took []time.Duration
			for sentAt := range sent {
				check(p.receive())
				<-slots
				if now := time.Now(); now.Before(stop) {
					took = append(took, now.Sub(sentAt))
				}
			}
			mu.Lock()
			latencies = append(latencies, took...)
			mu.Unlock()
		})
	}
	group.Wait()
	return newResult(latencies, span, 0)
}

// openSockets opens sockets, in turn on each instance.
func openSockets(instances []*telapi, n, workers int) ([]pipeline, []*websocket.Conn) {
	sockets, conns := make([]pipeline, n), make([]*websocket.Conn, n)
	parallel(n, workers, func(i int) {
		token, conn := instances[i%len(instances)].openSession()
		sockets[i], conns[i] = chatPipeline(conn, token.SessionID), conn
	})
	return sockets, conns
}

// readAck reads a frame and returns an error unless it is an acknowledgement.
func readAck(conn *websocket.Conn) error {
	frame, err := read(conn)
	if err == nil && !bytes.Contains(frame, []byte(`"event":"ack"`)) {
		err = fmt.Errorf("not acknowledged: %s", frame)
	}
	return err
}

// raiseFileLimit raises the limit of open files of this process and its children
// for n sockets.
func raiseFileLimit(n int) {
	want := uint64(n + 1000)
	var limit syscall.Rlimit
	check(syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	limit.Cur, limit.Max = max(limit.Cur, want), max(limit.Max, want)
	check(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit))
}
