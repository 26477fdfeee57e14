package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"
)

// timeout is the limit for every wait.
const timeout = 30 * time.Second

// dial opens a socket and reads the first frame.
func dial(url string, subprotocols ...string) (*websocket.Conn, error) {
	d := websocket.Dialer{Subprotocols: subprotocols, HandshakeTimeout: timeout, ReadBufferSize: 1024, WriteBufferSize: 1024}
	conn, resp, err := d.Dial(url, nil)
	if err != nil {
		if resp != nil {
			_ = resp.Body.Close()
			err = fmt.Errorf("%w: %s", err, resp.Status)
		}
		return nil, fmt.Errorf("open socket: %w", err)
	}
	if err := read(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func read(conn *websocket.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	_, _, err := conn.ReadMessage()
	return err
}

// readAck reads a frame and returns an error unless it is an acknowledgement.
func readAck(conn *websocket.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
	_, frame, err := conn.ReadMessage()
	if err == nil && !bytes.Contains(frame, []byte(`"event":"ack"`)) {
		err = fmt.Errorf("not acknowledged: %s", frame)
	}
	return err
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
func parallel(n, workers int, do func(i int) error) (perSecond float64, err error) {
	var group errgroup.Group
	group.SetLimit(workers)
	start := time.Now()
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	err = group.Wait()
	return float64(n) / time.Since(start).Seconds(), err
}

// pipeline sends frames. receive waits for the oldest frame to arrive or to be
// acknowledged.
type pipeline struct {
	send, receive func() error
}

// run keeps inFlight frames in flight on every pipeline and measures throughput
// and latency.
func run(pipelines []pipeline, inFlight int, span time.Duration) (result, error) {
	var group errgroup.Group
	var mu sync.Mutex
	var latencies []time.Duration
	var arrived atomic.Int64
	stop := time.Now().Add(span)
	for _, p := range pipelines {
		slots, sent := make(chan struct{}, inFlight), make(chan time.Time, inFlight)
		group.Go(func() error {
			defer close(sent)
			for time.Now().Before(stop) {
				slots <- struct{}{}
				sent <- time.Now()
				if err := p.send(); err != nil {
					return fmt.Errorf("send frame: %w", err)
				}
			}
			return nil
		})
		group.Go(func() error {
			var took []time.Duration
			for sentAt := range sent {
				err := p.receive()
				<-slots
				if err != nil {
					for range sent { // unblock the sender
						<-slots
					}
					return fmt.Errorf("receive frame: %w", err)
				}
				if now := time.Now(); now.Before(stop) {
					arrived.Add(1)
					took = append(took, now.Sub(sentAt))
				}
			}
			mu.Lock()
			latencies = append(latencies, took...)
			mu.Unlock()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return result{}, err
	}
	slices.Sort(latencies)
	if len(latencies) == 0 {
		return result{}, errors.New("no frame arrived")
	}
	return result{perSecond: float64(arrived.Load()) / span.Seconds(), p99: latencies[len(latencies)*99/100]}, nil
}

// raiseFileLimit raises the limit of open files of this process and its children
// for n sockets.
func raiseFileLimit(n int) error {
	want := uint64(n + 1000)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur, limit.Max = max(limit.Cur, want), max(limit.Max, want)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise limit of open files to %d: %w", want, err)
	}
	return nil
}
