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

	"telapi/test/poll"
)

// redisError is an error reply.
type redisError string

// client is a Redis client for RESP2.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, addr, user, password string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &client{t, conn, bufio.NewReader(conn)}
	if password != "" {
		c.do("AUTH", user, password)
	}
	return c
}

// do sends a command and returns its reply: a string, an int64, a list or nil.
func (c *client) do(args ...string) any {
	c.t.Helper()
	c.send(args...)
	reply := c.read()
	if message, failed := reply.(redisError); failed {
		c.t.Fatalf("error reply: %s", message)
	}
	return reply
}

// try is do for a command that may fail. It returns the error or the reply as text.
func (c *client) try(args ...string) string {
	c.t.Helper()
	c.send(args...)
	return fmt.Sprint(c.read())
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
	_ = c.conn.SetReadDeadline(time.Now().Add(poll.Timeout))
	line, err := c.in.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	kind, rest := line[0], strings.TrimSpace(line[1:])
	n, _ := strconv.Atoi(rest)
	switch kind {
	case '-':
		return redisError(rest)
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

// eval runs a channel script: channel.lua followed by the script.
func (c *client) eval(script, channelID string, args ...string) any {
	c.t.Helper()
	return c.do(channelCommand(c.script(script), channelID, args)...)
}

// evalFast runs a channel script with its fast version.
func (c *client) evalFast(script, channelID string, args ...string) any {
	c.t.Helper()
	return c.do(channelCommand(c.fastScript(script), channelID, args)...)
}

// script returns the complete text of a channel script.
func (c *client) script(name string) string {
	c.t.Helper()
	return c.readScript("channel") + c.readScript(name)
}

// fastScript returns a channel script with its fast version inserted before the
// marker.
func (c *client) fastScript(name string) string {
	c.t.Helper()
	before, after, found := strings.Cut(c.readScript("channel"), "\n-- MARKER")
	if !found {
		c.t.Fatal("channel.lua has no marker")
	}
	return before + "\n" + c.readScript(name+"_fast") + "-- MARKER" + after + c.readScript(name)
}

func (c *client) readScript(name string) string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "callruntime", "lua", name+".lua"))
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// channelCommand returns the command that runs a script on a channel without a
// deadline.
func channelCommand(text, channelID string, args []string) []string {
	command := []string{"EVAL", text, "9"}
	for _, key := range []string{"meta", "in", "out", "seen", "sent", "work", "forget", "seenBefore", "sentBefore"} {
		command = append(command, "telapi:ch:{"+channelID+"}:"+key)
	}
	return append(append(command, args...), "")
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
