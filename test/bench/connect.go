package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// opened is the number of tokens and sockets per round.
const opened = 500

// connect compares the rates of issuing tokens and opening sockets with a server
// that upgrades without checks.
func connect(at *site, s settings) error {
	t, err := at.startTelapi()
	if err != nil {
		return err
	}
	defer t.kill()
	peer, err := startPeer("greet", strings.NewReader(""))
	if err != nil {
		return err
	}
	defer peer.stop()

	tokens := make([]sessionToken, opened)
	issue := func() (result, error) {
		return at.measureCPU([]*process{t.process}, func() (result, error) {
			rate, err := parallel(opened, s.connections, func(i int) (err error) { tokens[i], err = t.issue(); return err })
			return result{perSecond: rate}, err
		})
	}
	open := func(p *process, dial func(i int) (*websocket.Conn, error)) (result, error) {
		conns := make([]*websocket.Conn, opened)
		r, err := at.measureCPU([]*process{p}, func() (result, error) {
			rate, err := parallel(opened, s.connections, func(i int) (err error) { conns[i], err = dial(i); return err })
			return result{perSecond: rate}, err
		})
		closeAll(conns)
		if err == nil {
			err = t.awaitNoSockets()
		}
		return r, err
	}
	baseline := func() (result, error) {
		return open(peer, func(int) (*websocket.Conn, error) { return dial("ws://" + peer.line) })
	}
	fmt.Printf("%d concurrent clients, %s\n", s.connections, at.database)
	issued, err := interleave(s.rounds, issue, baseline)
	if err != nil {
		return err
	}
	sockets, err := interleave(s.rounds, func() (result, error) {
		if _, err := issue(); err != nil {
			return result{}, err
		}
		return open(t.process, func(i int) (*websocket.Conn, error) { return t.open(tokens[i]) })
	}, baseline)
	if err != nil {
		return err
	}
	issued.print("tokens", "plain upgrade", "sockets", "")
	sockets.print("sockets", "plain upgrade", "sockets", "")
	return nil
}

// awaitNoSockets waits until the service has closed all sockets.
func (t *telapi) awaitNoSockets() error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		n, err := t.metric("telapi_sockets")
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%v sockets are still open after the timeout", n)
		}
	}
}
