// Command suite runs go test on packages that share their servers and one built
// program, and prints its progress:
//
//	go run ./test/suite [-servers] [-p=4 …] PACKAGE…
//
// Flags other than -servers are those of go test, with values after an equals sign.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"telapi/test/testkit"
)

func main() {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt) // go test ends by itself; then stop the servers
	err := run(os.Args[1:])
	testkit.StopShared()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func run(args []string) error {
	env := os.Environ()
	if i := slices.Index(args, "-servers"); i >= 0 {
		args = slices.Delete(args, i, i+1)
		env = append(env, testkit.StartShared(testkit.Lasting{TB: testkit.Console{}})...)
	}
	packages := slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return strings.HasPrefix(arg, "-") })
	list, err := exec.Command("go", append([]string{"list"}, packages...)...).Output()
	if err != nil {
		return fmt.Errorf("list packages: %w", err)
	}
	test := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	test.Env, test.Stderr = env, os.Stderr
	output, err := test.StdoutPipe()
	if err != nil {
		return err
	}
	if err := test.Start(); err != nil {
		return err
	}
	r := newReport(len(strings.Fields(string(list))), os.Stdout)
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		r.add(lines.Bytes())
	}
	return errors.Join(lines.Err(), test.Wait())
}
