// Command telapi is the whole service in one binary.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"telapi/internal/cli"
)

// interrupted is the exit code of a process that a second signal ended.
const interrupted = 130

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop() // drain
		<-signals
		os.Exit(interrupted) // no patience left: end at once
	}()
	os.Exit(cli.Run(ctx, cli.Console{
		Program: os.Args[0], Args: os.Args[1:], Env: os.Environ(), In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
	}))
}
