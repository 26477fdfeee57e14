//go:build !linux

package app

import "net"

func ignoreNewConnections(*net.TCPListener) error { return nil }

func waitingConnections(*net.TCPListener) uint32 { return 0 }
