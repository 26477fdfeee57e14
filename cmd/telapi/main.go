// Command telapi runs and administers the service.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"telapi/internal/cli"
)

// interrupted is the exit code after a second signal.
const interrupted = 130

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop() // shut down gracefully
		<-signals
		os.Exit(interrupted)
	}()
	os.Exit(cli.Run(ctx, cli.Console{
		Program: os.Args[0], Args: os.Args[1:], Env: os.Environ(), In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
	}))
}
