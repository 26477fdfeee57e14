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

// patience bounds every wait for a frame.
const patience = 30 * time.Second

// dial opens a socket and reads the frame by which a server greets it.
func dial(url string, subprotocols ...string) (*websocket.Conn, error) {
	d := websocket.Dialer{Subprotocols: subprotocols, HandshakeTimeout: patience, ReadBufferSize: 1024, WriteBufferSize: 1024}
	conn, resp, err := d.Dial(url, nil)
	if err != nil {
		if resp != nil {
			_ = resp.Body.Close()
			err = fmt.Errorf("%w: %s", err, resp.Status)
		}
		return nil, fmt.Errorf("open a socket: %w", err)
	}
	if err := read(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func read(conn *websocket.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	_, _, err := conn.ReadMessage()
	return err
}

// readAck reads a frame that has to be an acknowledgement: a refusal would be
// cheaper.
func readAck(conn *websocket.Conn) error {
	_ = conn.SetReadDeadline(time.Now().Add(patience))
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

// many does something n times, workers at a time, and tells how many a second.
func many(n, workers int, do func(i int) error) (perSecond float64, err error) {
	var group errgroup.Group
	group.SetLimit(workers)
	began := time.Now()
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	err = group.Wait()
	return float64(n) / time.Since(began).Seconds(), err
}

// lane is one way for frames: what is sent comes out, or is acknowledged, in
// the same order.
type lane struct {
	send, receive func() error
}

// drive keeps some frames under way on every lane and measures how many arrive,
// and how long each takes.
func drive(lanes []lane, inFlight int, span time.Duration) (result, error) {
	var group errgroup.Group
	var mu sync.Mutex
	var all []time.Duration
	var arrived atomic.Int64
	stop := time.Now().Add(span)
	for _, l := range lanes {
		slots, sent := make(chan struct{}, inFlight), make(chan time.Time, inFlight)
		group.Go(func() error {
			defer close(sent)
			for time.Now().Before(stop) {
				slots <- struct{}{}
				sent <- time.Now()
				if err := l.send(); err != nil {
					return fmt.Errorf("send a frame: %w", err)
				}
			}
			return nil
		})
		group.Go(func() error {
			var took []time.Duration
			for began := range sent {
				err := l.receive()
				<-slots
				if err != nil {
					for range sent { // the sender must not hang
						<-slots
					}
					return fmt.Errorf("await a frame: %w", err)
				}
				if now := time.Now(); now.Before(stop) {
					arrived.Add(1)
					took = append(took, now.Sub(began))
				}
			}
			mu.Lock()
			all = append(all, took...)
			mu.Unlock()
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return result{}, err
	}
	slices.Sort(all)
	if len(all) == 0 {
		return result{}, errors.New("no frame arrived")
	}
	return result{perSecond: float64(arrived.Load()) / span.Seconds(), p99: all[len(all)*99/100]}, nil
}

// allowFiles lets this process and those it starts hold as many sockets.
func allowFiles(n int) error {
	want := uint64(n + 1000)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur, limit.Max = max(limit.Cur, want), max(limit.Max, want)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("allow %d open files: %w", want, err)
	}
	return nil
}
