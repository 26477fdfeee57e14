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
)

const (
	// refusalWindow is how long the refusals of a client are counted together.
	refusalWindow = time.Minute
	// loggedRefusals is the number of refusals per client and window that have a line
	// in the access log.
	loggedRefusals = 20
	// maxRefusedClients bounds the memory; further clients share one count.
	maxRefusedClients = 1024
)

// refusalLog limits the access log lines of clients whose requests are refused. A
// refused request costs the client nothing, and rate limits do not stop it. After
// the first lines, refusals are only counted, and one line has the counts of the
// window.
type refusalLog struct {
	log *slog.Logger

	mu      sync.Mutex
	clients map[netip.Prefix]*refusals
	timer   *time.Timer // runs flush; nil if nothing was refused
}

// refusals are the refused requests of one client in the current window.
type refusals struct {
	logged int
	counts map[fault.Code]int // of those that were not logged
}

// admit reports whether the refusal of a client's request gets its own line.
func (l *refusalLog) admit(client netip.Addr, code fault.Code) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.clients = map[netip.Prefix]*refusals{}
		l.timer = time.AfterFunc(refusalWindow, l.flush)
	}
	network := clientNetwork(client)
	r := l.clients[network]
	if r == nil {
		if len(l.clients) >= maxRefusedClients {
			network = netip.Prefix{}
		}
		if r = l.clients[network]; r == nil {
			r = &refusals{counts: map[fault.Code]int{}}
			l.clients[network] = r
		}
	}
	if r.logged < loggedRefusals {
		r.logged++
		return true
	}
	r.counts[code]++
	return false
}

// clientNetwork returns the addresses that count as one client, as in package
// ratelimit: a client owns all addresses of its IPv6 /64 network.
func clientNetwork(client netip.Addr) netip.Prefix {
	bits := client.BitLen()
	if client.Is6() {
		bits = 64
	}
	network, err := client.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // no valid address
	}
	return network
}

// flush ends the window and logs the counts.
func (l *refusalLog) flush() {
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
		l.log.LogAttrs(context.Background(), slog.LevelInfo, "more refused requests",
			slog.String("client", client), slog.Int("requests", total), slog.String("codes", strings.Join(codes, " ")),
			slog.Duration("window", refusalWindow))
	}
}
