// Package runtimecontract tests docs/runtime-contract.md with a runtime that uses
// only a TCP connection, plain Redis commands and the script files, like one in
// another language.
package runtimecontract

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// client is a Redis client for RESP2.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, addr, password string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &client{t, conn, bufio.NewReader(conn)}
	if password != "" {
		c.do("AUTH", password)
	}
	return c
}

// do sends a command and returns its reply: a string, an int64, a list or nil.
func (c *client) do(args ...string) any {
	c.t.Helper()
	c.send(args...)
	return c.read()
}

func (c *client) send(args ...string) {
	c.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(c.conn, b.String()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) read() any {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	line, err := c.in.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	kind, rest := line[0], strings.TrimSpace(line[1:])
	n, _ := strconv.Atoi(rest)
	switch kind {
	case '-':
		c.t.Fatalf("error reply: %s", rest)
	case ':':
		return int64(n)
	case '$':
		if n < 0 {
			return nil
		}
		b := make([]byte, n+2)
		if _, err := io.ReadFull(c.in, b); err != nil {
			c.t.Fatal(err)
		}
		return string(b[:n])
	case '*':
		if n < 0 {
			return nil
		}
		list := make([]any, n)
		for i := range list {
			list[i] = c.read()
		}
		return list
	}
	return rest
}

// eval runs a channel script.
func (c *client) eval(script, channelID string, args ...string) any {
	c.t.Helper()
	var text strings.Builder
	for _, file := range []string{"base", "channel", script} {
		content, err := os.ReadFile(filepath.Join("..", "..", "internal", "lua", file+".lua"))
		if err != nil {
			c.t.Fatal(err)
		}
		text.Write(content)
	}
	command := []string{"EVAL", text.String(), "9"}
	for _, key := range []string{"meta", "in", "out", "seen", "sent", "work", "forget", "seenBefore", "sentBefore"} {
		command = append(command, "telapi:ch:{"+channelID+"}:"+key)
	}
	return c.do(append(command, args...)...)
}

// at returns the element of a nested list.
func at(reply any, path ...int) any {
	for _, i := range path {
		list, ok := reply.([]any)
		if !ok || i >= len(list) {
			return nil
		}
		reply = list[i]
	}
	return reply
}
