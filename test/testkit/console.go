package testkit

import (
	"fmt"
	"os"
	"testing"
)

// Console is a testing.TB for a program that starts servers: an error ends the program.
// Wrap it in a Lasting.
type Console struct{ testing.TB }

// Helper does nothing.
func (Console) Helper() {}

// Fatal prints its arguments, stops the servers and exits.
func (Console) Fatal(args ...any) {
	fmt.Println(args...)
	StopShared()
	os.Exit(1)
}

// Fatalf is Fatal with a format.
func (c Console) Fatalf(format string, args ...any) { c.Fatal(fmt.Sprintf(format, args...)) }

// Skipf is Fatalf: a program needs its servers.
func (c Console) Skipf(format string, args ...any) { c.Fatalf(format, args...) }
