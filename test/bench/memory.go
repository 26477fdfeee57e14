package main

import (
	"fmt"
	"time"

	"github.com/gorilla/websocket"

	"telapi/internal/kv"
)

// idleTime is longer than a ping interval, so that every socket has been pinged
// before memory is measured.
const idleTime = 30 * time.Second

// memory compares the memory of idle sockets with plain gorilla sockets.
func memory(at *site, s settings) {
	raiseFileLimit(s.idle)
	fmt.Printf("%d sockets, idle for %s\n", s.idle, idleTime)
	t := at.startTelapi()
	defer t.kill()
	redis := func() float64 { return infoField(at.redis[0], "memory", "used_memory") }
	inRedis := -redis()
	open := func() *websocket.Conn {
		_, conn := t.openSession()
		return conn
	}
	ours := idleMemory(t.process, s, idleTime, open, func() {
		if open := t.metric("telapi_sockets"); open != float64(s.idle) {
			check(fmt.Errorf("%v sockets are open, want %d", open, s.idle))
		}
		inRedis = (inRedis + redis()) / float64(s.idle)
	})
	peer := at.startPeer("greet")
	defer peer.kill()
	baseline := idleMemory(peer, s, time.Second, func() *websocket.Conn { return dial("ws://" + peer.line) }, func() {})
	fmt.Printf("  %-18s %8.0f bytes/socket resident\n", "telapi", ours)
	fmt.Printf("  %-18s %8.0f bytes/session\n", "in Redis", inRedis)
	fmt.Printf("  %-18s %8.0f bytes (target: less than 20480)\n", "total", ours+inRedis)
	fmt.Printf("  %-18s %8.0f bytes/socket resident\n", "plain gorilla", baseline)
	fmt.Printf("  %-18s %8.2f\n", "telapi : gorilla", ours/baseline)
}

// idleMemory opens sockets that only answer pings, waits, calls check and returns
// the resident memory of the server per socket.
func idleMemory(p *process, s settings, wait time.Duration, open func() *websocket.Conn, check func()) (perSocket float64) {
	before := p.resident()
	conns := make([]*websocket.Conn, s.idle)
	defer closeAll(conns)
	parallel(s.idle, s.connections, func(i int) {
		conns[i] = open()
		_ = conns[i].SetReadDeadline(time.Time{})
		go func() {
			var err error
			for err == nil {
				_, _, err = conns[i].ReadMessage()
			}
		}()
	})
	<-time.After(wait)
	check()
	return (p.resident() - before) / float64(s.idle)
}

// channelMemory returns the bytes in Redis of a channel, and of what is left in ten minutes.
func (s *site) channelMemory(id string) (now, late float64) {
	for _, key := range kv.ChannelKeys(id) {
		left := s.redis[0].MustDo("PTTL", key)
		if ttl := time.Duration(must(left.AsInt64())) * time.Millisecond; ttl > 0 {
			used := s.redis[0].MustDo("MEMORY", "USAGE", key, "SAMPLES", "0")
			size := float64(must(used.AsInt64()))
			now += size
			if ttl > 10*time.Minute {
				late += size
			}
		}
	}
	return now, late
}
