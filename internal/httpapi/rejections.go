package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"telapi/internal/fault"
	"telapi/internal/ratelimit"
)

const (
	// rejectionWindow is how long the rejections of a client are counted together.
	rejectionWindow = time.Minute
	// loggedRejections is the number of rejections per client and window that have a line
	// in the access log.
	loggedRejections = 20
	// maxRejectedClients bounds the memory; further clients share one count.
	maxRejectedClients = 1024
)

// rejectionLog limits the access log lines of clients whose requests are rejected, which
// rate limits do not stop. After the first lines of a window, rejections are only counted,
// and one line has the counts.
type rejectionLog struct {
	log *slog.Logger

	mu      sync.Mutex
	clients map[netip.Prefix]*rejections // by address, or IPv6 network
	timer   *time.Timer                  // runs flush; nil if nothing was rejected
}

// rejections are the rejected requests of one client in the current window.
type rejections struct {
	logged int
	counts map[fault.Code]int // of those that were not logged
}

// admit reports whether the rejection of a client's request gets its own line.
func (l *rejectionLog) admit(client netip.Addr, code fault.Code) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.clients = map[netip.Prefix]*rejections{}
		l.timer = time.AfterFunc(rejectionWindow, l.flush)
	}
	network := ratelimit.Client(client)
	if l.clients[network] == nil && len(l.clients) >= maxRejectedClients {
		network = netip.Prefix{} // shared by further clients
	}
	r := l.clients[network]
	if r == nil {
		r = &rejections{counts: map[fault.Code]int{}}
		l.clients[network] = r
	}
	if r.logged < loggedRejections {
		r.logged++
		return true
	}
	r.counts[code]++
	return false
}

// flush ends the window and logs the counts.
func (l *rejectionLog) flush() {
	l.mu.Lock()
	clients := l.clients
	if l.timer != nil {
		l.timer.Stop()
	}
	l.clients, l.timer = nil, nil
	l.mu.Unlock()
	for network, r := range clients {
		if len(r.counts) == 0 {
			continue
		}
		client, total := "others", 0
		if network.IsValid() {
			client = strings.TrimSuffix(network.String(), "/32")
		}
		codes := make([]string, 0, len(r.counts))
		for _, code := range slices.Sorted(maps.Keys(r.counts)) {
			total += r.counts[code]
			codes = append(codes, fmt.Sprintf("%s=%d", code, r.counts[code]))
		}
		l.log.LogAttrs(context.Background(), slog.LevelInfo, "more rejected requests",
			slog.String("client", client), slog.Int("requests", total), slog.String("codes", strings.Join(codes, " ")),
			slog.Duration("window", rejectionWindow))
	}
}
