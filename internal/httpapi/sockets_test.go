package httpapi

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/channel"
)

func TestSocketThatOpensWhileTheLastOneEndsDoesNotUpsetADrain(t *testing.T) {
	for range 2000 {
		s := &Server{sockets: newSockets(prometheus.NewRegistry()), endStreams: func() {}}
		last, late := &pump{closing: channel.CloseRestart}, &pump{closing: channel.CloseRestart}
		s.sockets.add(last)
		var drain sync.WaitGroup
		drain.Go(func() { s.Drain(t.Context(), time.Nanosecond) })
		for drains := false; !drains; runtime.Gosched() {
			s.sockets.mu.Lock()
			drains = s.sockets.gone != nil
			s.sockets.mu.Unlock()
			runtime.Gosched()
		}
		s.sockets.remove(last, channel.CloseRestart)
		s.sockets.add(late)
		runtime.Gosched()
		s.sockets.remove(late, channel.CloseRestart)
		drain.Wait()
	}
}
