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

// settled is how long idle sockets are left alone before the memory they hold
// is read: more than a ping interval, so that every one has been pinged.
const settled = 30 * time.Second

// memory measures what an idle socket holds, beside a bare one.
func memory(at *site, s settings) error {
	if err := allowFiles(s.idle); err != nil {
		return err
	}
	fmt.Printf("%d idle sockets, left alone for %s\n", s.idle, settled)
	t, err := at.startTelapi()
	if err != nil {
		return err
	}
	defer t.kill()
	stored, err := at.stored()
	if err != nil {
		return err
	}
	var storedThen float64
	ours, err := hold(t.process, s, settled, func() (*websocket.Conn, error) { _, conn, err := t.enter(); return conn, err }, func() (err error) {
		if open, err := t.metric("telapi_sockets"); err != nil || open != float64(s.idle) {
			return fmt.Errorf("%v sockets are open, %d were opened: %w", open, s.idle, err)
		}
		storedThen, err = at.stored()
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
	bare, err := hold(peer, s, time.Second, func() (*websocket.Conn, error) { return dial("ws://" + peer.line) }, func() error { return nil })
	if err != nil {
		return err
	}
	inRedis := (storedThen - stored) / float64(s.idle)
	fmt.Printf("  %-18s %8.0f bytes/socket resident\n", "telapi", ours)
	fmt.Printf("  %-18s %8.0f bytes/session\n", "in Redis", inRedis)
	fmt.Printf("  %-18s %8.0f bytes (less than 20480 wanted)\n", "in all", ours+inRedis)
	fmt.Printf("  %-18s %8.0f bytes/socket resident\n", "bare gorilla", bare)
	fmt.Printf("  %-18s %8.2f\n", "telapi : bare", ours/bare)
	return nil
}

// hold opens idle sockets, which answer pings, and measures what each of them
// costs the server once they have been left alone for a while. Check is called
// while they are open.
func hold(p *process, s settings, wait time.Duration, open func() (*websocket.Conn, error), check func() error) (perSocket float64, err error) {
	before, err := p.resident()
	if err != nil {
		return 0, err
	}
	conns := make([]*websocket.Conn, s.idle)
	defer func() { closeAll(conns) }()
	if _, err = many(s.idle, s.connections, func(i int) error {
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
	time.Sleep(wait)
	if err := check(); err != nil {
		return 0, err
	}
	now, err := p.resident()
	return (now - before) / float64(s.idle), err
}

var usedLine = regexp.MustCompile(`(?m)^used_memory:(\d+)`)

// stored is the memory that Redis holds, 0 where there is none.
func (s *site) stored() (float64, error) {
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
		return 0, fmt.Errorf("no memory in what Redis tells")
	}
	return strconv.ParseFloat(m[1], 64)
}
