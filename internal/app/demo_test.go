package app

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"telapi/internal/demo"
	"telapi/test/testkit"
)

// openSockets returns the number of sockets of this process.
func openSockets(t *testing.T) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("list open files in /proc/self/fd: %v", err)
	}
	for _, file := range files {
		if target, _ := os.Readlink(file); strings.HasPrefix(target, "socket:") {
			n++
		}
	}
	return n
}

func TestDemoClosesBotIfRuntimeFails(t *testing.T) {
	listener, err := listenTCP(t.Context(), "127.0.0.1", 0, "TELAPI")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	a := &App{process: process{log: slog.New(slog.DiscardHandler), listener: listener}, demo: &demoState{events: demo.NewHub()}}
	before := openSockets(t)
	if _, err := a.openDemo(demo.Resources{}); err == nil || !strings.Contains(err.Error(), "start demo runtime") {
		t.Fatalf("without a key: error %v, want \"start demo runtime\"", err)
	}
	testkit.Until(t, "the bot's port is closed", func() bool { return openSockets(t) <= before })
}
