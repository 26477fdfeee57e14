package main

import (
	"fmt"

	"github.com/gorilla/websocket"
)

// opened is the number of tokens and sockets per round.
const opened = 500

// connect compares the rates of issuing tokens and opening sockets with a server
// that upgrades without checks.
func connect(at *site, s settings) {
	t, peer := at.startTelapi(), at.startPeer("greet")
	defer t.kill()
	defer peer.kill()
	measure := func(p *process, do func(i int)) result {
		return at.measureCPU([]*process{p}, func() result { return result{perSecond: parallel(opened, s.connections, do)} })
	}
	tokens := make([]sessionToken, opened)
	issue := func() result { return measure(t.process, func(i int) { tokens[i] = t.issue() }) }
	open := func(p *process, dial func(i int) *websocket.Conn) result {
		conns := make([]*websocket.Conn, opened)
		r := measure(p, func(i int) { conns[i] = dial(i) })
		closeAll(conns)
		await("the service closes all sockets", func() bool { return t.metric("telapi_sockets") == 0 })
		return r
	}
	baseline := func() result {
		return open(peer, func(int) *websocket.Conn { return dial("ws://" + peer.line) })
	}
	fmt.Printf("%d concurrent clients\n", s.connections)
	issued := interleave(s.rounds, issue, baseline)
	sockets := interleave(s.rounds, func() result {
		issue()
		return open(t.process, func(i int) *websocket.Conn { return t.open(tokens[i]) })
	}, baseline)
	issued.print("tokens", "plain upgrade", "")
	sockets.print("sockets", "plain upgrade", "")
}
