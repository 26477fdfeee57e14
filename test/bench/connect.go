package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// opened is how many tokens and sockets a round of connect takes.
const opened = 500

// connect measures how fast tokens are issued and sockets opened, against a
// server that upgrades whoever comes.
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

	tickets := make([]ticket, opened)
	issue := func() (result, error) {
		rate, err := many(opened, s.connections, func(i int) (err error) { tickets[i], err = t.issue(); return err })
		return result{perSecond: rate}, err
	}
	open := func(dial func(i int) (*websocket.Conn, error)) (result, error) {
		conns := make([]*websocket.Conn, opened)
		rate, err := many(opened, s.connections, func(i int) (err error) { conns[i], err = dial(i); return err })
		closeAll(conns)
		if err == nil {
			err = t.empty()
		}
		return result{perSecond: rate}, err
	}
	bare := func() (result, error) {
		return open(func(int) (*websocket.Conn, error) { return dial("ws://" + peer.line) })
	}
	fmt.Printf("%d at a time, on %s\n", s.connections, at.database)
	tokens, err := interleave(s.rounds, issue, bare)
	if err != nil {
		return err
	}
	sockets, err := interleave(s.rounds, func() (result, error) {
		if _, err := issue(); err != nil {
			return result{}, err
		}
		return open(func(i int) (*websocket.Conn, error) { return t.open(tickets[i]) })
	}, bare)
	if err != nil {
		return err
	}
	tokens.print("tokens", "bare upgrade", "sockets", "")
	sockets.print("sockets", "bare upgrade", "sockets", "")
	return nil
}

// empty waits until the service has done with every socket.
func (t *telapi) empty() error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		n, err := t.metric("telapi_sockets")
		if err != nil || n == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%v sockets are still open", n)
		}
	}
}
