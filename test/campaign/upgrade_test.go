package campaign

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// previousTag is the tag of the previous release. Set it when a release is made.
const previousTag = ""

// Both releases run on the same stores while one replaces the other, instance by
// instance and runtime by runtime, and back again. Conversations go on, and nothing is
// lost, duplicated or reordered.
func TestRollingUpgradeAndRollback(t *testing.T) {
	if previousTag == "" {
		t.Skip("nothing was released yet, so there is no version to upgrade from")
	}
	t.Parallel()
	testkit.StartRedis(t) // requires redis-server, before the build
	previous, current := buildPrevious(t), buildCurrent(t)
	size := newSize(0)
	size.browsers, size.rate, size.lease, size.ping = 12, 30, 6*time.Second, 3*time.Second
	c := newCampaign(t, size, false, previous)
	for _, step := range []struct {
		name string
		n    int
		p    programs
	}{
		{"first instance and runtime upgraded", 0, current},
		{"second instance and runtime upgraded", 1, current},
		{"first instance and runtime rolled back", 0, previous},
		{"second instance and runtime rolled back", 1, previous},
	} {
		c.run(fault{name: step.name, inject: func(c *campaign, _ int) {
			c.replace(step.n, step.p)
			c.join(4) // sessions that begin now
		}}, 0)
	}
	c.check(t)
}

// replace replaces a runtime and an instance by those of another release.
func (c *campaign) replace(n int, p programs) {
	c.t.Helper()
	c.runtimes[n].stop()
	c.runtimeProgram = p.runtime
	c.startRuntime(c.ctx, n, c.ledger, c.provider)

	c.Program = p.service
	c.restart(n)
}

// buildPrevious builds the previous release from its tag.
func buildPrevious(t *testing.T) programs {
	t.Helper()
	git := func(args ...string) *exec.Cmd {
		return exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", "../.."}, args...)...)
	}
	if out, err := git("cat-file", "-e", previousTag+"^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("the tag %s is missing: use a complete clone (git fetch --unshallow --tags)\n%s", previousTag, out)
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "source.tar")
	runCommand(t, git("archive", "--output="+archive, previousTag))
	runCommand(t, exec.Command("tar", "-xf", archive, "-C", dir))
	if err := os.CopyFS(filepath.Join(dir, "cmd/upgrade-runtime"), os.DirFS("testdata/runtime")); err != nil {
		t.Fatal(err)
	}
	build(t, dir, dir, "./cmd/telapi", "./cmd/upgrade-runtime")
	return programs{service: harness.Program(filepath.Join(dir, "telapi")), runtime: filepath.Join(dir, "upgrade-runtime")}
}

// buildCurrent builds the runtime. The service is the binary under test.
func buildCurrent(t *testing.T) programs {
	t.Helper()
	dir := t.TempDir()
	build(t, ".", dir, "./testdata/runtime")
	return programs{runtime: filepath.Join(dir, "runtime")}
}

// build builds packages of the module in a directory. Most dependencies are in the build
// cache, because they are those of the binary under test.
func build(t *testing.T, from, to string, packages ...string) {
	t.Helper()
	runCommand(t, exec.Command("go", append([]string{"-C", from, "build", "-buildvcs=false", "-o", to + "/"}, packages...)...))
}

func runCommand(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
}
