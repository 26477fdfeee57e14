package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// idleTime is longer than a ping interval, so that every socket has been pinged
// before memory is measured.
const idleTime = 30 * time.Second

// memory compares the memory of idle sockets with plain gorilla sockets.
func memory(at *site, s settings) error {
	if err := raiseFileLimit(s.idle); err != nil {
		return err
	}
	fmt.Printf("%d sockets, idle for %s\n", s.idle, idleTime)
	t, err := at.startTelapi()
	if err != nil {
		return err
	}
	defer t.kill()
	redisBefore, err := at.redisMemory()
	if err != nil {
		return err
	}
	var redisAfter float64
	ours, err := idleMemory(t.process, s, idleTime, func() (*websocket.Conn, error) { _, conn, err := t.openSession(); return conn, err }, func() (err error) {
		if open, err := t.metric("telapi_sockets"); err != nil || open != float64(s.idle) {
			return fmt.Errorf("%v sockets are open, want %d: %w", open, s.idle, err)
		}
		redisAfter, err = at.redisMemory()
		return err
	})
	if err != nil {
		return err
	}
	peer, err := startPeer("greet", strings.NewReader(""))
	if err != nil {
		return err
	}
	defer peer.kill()
	baseline, err := idleMemory(peer, s, time.Second, func() (*websocket.Conn, error) { return dial("ws://" + peer.line) }, func() error { return nil })
	if err != nil {
		return err
	}
	inRedis := (redisAfter - redisBefore) / float64(s.idle)
	fmt.Printf("  %-18s %8.0f bytes/socket resident\n", "telapi", ours)
	fmt.Printf("  %-18s %8.0f bytes/session\n", "in Redis", inRedis)
	fmt.Printf("  %-18s %8.0f bytes (target: less than 20480)\n", "total", ours+inRedis)
	fmt.Printf("  %-18s %8.0f bytes/socket resident\n", "plain gorilla", baseline)
	fmt.Printf("  %-18s %8.2f\n", "telapi : gorilla", ours/baseline)
	return nil
}

// idleMemory opens sockets that only answer pings, waits, calls check and returns
// the resident memory of the server per socket.
func idleMemory(p *process, s settings, wait time.Duration, open func() (*websocket.Conn, error), check func() error) (perSocket float64, err error) {
	before, err := p.resident()
	if err != nil {
		return 0, err
	}
	conns := make([]*websocket.Conn, s.idle)
	defer func() { closeAll(conns) }()
	if _, err = parallel(s.idle, s.connections, func(i int) error {
		conn, err := open()
		if err != nil {
			return err
		}
		conns[i] = conn
		_ = conn.SetReadDeadline(time.Time{})
		go func() {
			var err error
			for err == nil {
				_, _, err = conn.ReadMessage()
			}
		}()
		return nil
	}); err != nil {
		return 0, err
	}
	<-time.After(wait)
	if err := check(); err != nil {
		return 0, err
	}
	now, err := p.resident()
	return (now - before) / float64(s.idle), err
}

var usedLine = regexp.MustCompile(`(?m)^used_memory:(\d+)`)

// redisMemory returns the memory that Redis uses, or 0 with the embedded store.
func (s *site) redisMemory() (float64, error) {
	if s.redisURL == "" {
		return 0, nil
	}
	client, err := s.redis()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	info, err := client.Do(context.Background(), client.B().Info().Section("memory").Build()).ToString()
	if err != nil {
		return 0, err
	}
	m := usedLine.FindStringSubmatch(info)
	if m == nil {
		return 0, fmt.Errorf("INFO memory has no used_memory")
	}
	return strconv.ParseFloat(m[1], 64)
}
