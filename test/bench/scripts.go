package main

import (
	"bufio"
	"cmp"
	"crypto/sha1" // the digest that names scripts in Redis
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"

	"telapi/internal/kv"
)

// usage is how often Redis ran a script or another command, and how many commands the
// script ran.
type usage struct{ calls, commands float64 }

// printScripts prints which scripts and other commands Redis runs for each turn. MONITOR
// slows Redis down, so nothing else is measured meanwhile.
func (s *site) printScripts(turns int, run func()) {
	conn := must(net.Dial("tcp", s.redis[0].Addr()))
	must(conn.Write([]byte("MONITOR\r\n")))
	scripts, others, ended := map[string]*usage{}, map[string]*usage{}, make(chan struct{})
	go func() {
		defer close(ended)
		countCommands(conn, scripts, others)
	}()
	run()
	check(conn.Close())
	<-ended
	printUsage("scripts", scripts, float64(turns))
	printUsage("other commands", others, float64(turns))
}

// countCommands reads the output of MONITOR. The commands of a script follow it.
func countCommands(monitor io.Reader, scripts, others map[string]*usage) {
	names, lines, current := scriptNames(), bufio.NewReader(monitor), new(usage)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		source, command, _ := strings.Cut(line, "] ")
		words := strings.SplitN(command+`""""`, `"`, 5) // with the name and the first argument
		list, name := others, strings.ToUpper(words[1])
		if name == "EVALSHA" {
			list, name = scripts, cmp.Or(names[words[3]], words[3])
		}
		switch {
		case command == "": // the reply to MONITOR
		case strings.HasSuffix(source, " lua"):
			current.commands++
		default:
			if list[name] == nil {
				list[name] = new(usage)
			}
			current = list[name]
			current.calls++
		}
	}
}

// printUsage prints the sum, and what runs in more than one turn of twenty.
func printUsage(what string, list map[string]*usage, turns float64) {
	each := func(name string, u usage) {
		fmt.Printf("  %-44s %8.2f", name, u.calls/turns)
		if u.commands > 0 {
			fmt.Printf("   %.1f commands each", u.commands/u.calls)
		}
		fmt.Println()
	}
	var sum usage
	for _, u := range list {
		sum.calls, sum.commands = sum.calls+u.calls, sum.commands+u.commands
	}
	each(what+" each turn", sum)
	for _, name := range slices.SortedFunc(maps.Keys(list), func(a, b string) int { return cmp.Compare(list[b].calls, list[a].calls) }) {
		if u := *list[name]; u.calls > turns/20 {
			each("  "+name, u)
		}
	}
}

// scriptNames returns the names of the scripts by their digests.
func scriptNames() map[string]string {
	names := map[string]string{}
	for _, name := range kv.ScriptNames() {
		names[fmt.Sprintf("%x", sha1.Sum([]byte(kv.Script(name))))] = name
	}
	return names
}
