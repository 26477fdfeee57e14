//go:build !manpages

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop() // shut down gracefully
		<-signals
		os.Exit(exitInterrupted)
	}()
	c := cli{Program: os.Args[0], Args: os.Args[1:], Env: os.Environ(), In: os.Stdin, Out: os.Stdout, Err: os.Stderr}
	os.Exit(c.execute(ctx))
}
