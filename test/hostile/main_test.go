// Package hostile attacks the service as anyone who can reach it could, and checks
// that memory, processor and disk stay bounded.
package hostile

import (
	"flag"
	"os"
	"testing"

	"telapi/test/testkit"
)

// latency fails the tests if a bystander waits too long during an attack. It needs
// root, and a machine that does nothing else.
var latency = flag.Bool("latency", false, "limit the time that a bystander waits during an attack")

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == bystanderArg {
		os.Exit(runBystander(os.Stdin, os.Stdout))
	}
	testkit.Main(m)
}
