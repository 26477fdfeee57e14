package campaign

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"telapi/internal/kv"
	"telapi/internal/lua"
	"telapi/test/boot"
	"telapi/test/poll"
)

// The previous release. Change both when a release is made.
const (
	previousVersion = "0.9.18"
	previousCommit  = "b91ccaa61d77b6ef392d78f4cb86351c1800eca9"
)

// Both releases run on the same stores while one replaces the other, instance by
// instance and runtime by runtime, and back again. Conversations go on, and nothing is
// lost, duplicated or reordered.
func TestRollingUpgradeAndRollback(t *testing.T) {
	t.Parallel()
	previous, current := buildPrevious(t), buildCurrent(t)
	size := newSize(0)
	size.browsers, size.rate, size.lease, size.ping = 12, 30, 6*time.Second, 3*time.Second
	c := newCampaign(t, size, false, previous)
	if version := c.scriptVersion(); version != "" {
		t.Fatalf("version of the scripts before the upgrade: %q; %s publishes none", version, previousVersion)
	}
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
			if step.p == current {
				poll.Until(t, "the new instance has published its script version", func() bool { return c.scriptVersion() == lua.Version() })
			}
			c.join(4) // sessions that begin now
		}}, 0)
	}
	c.check(t)
}

// scriptVersion returns the version of the scripts that an instance has published within
// the last minute.
func (c *campaign) scriptVersion() string {
	reply, _ := c.redis.Do("GET", kv.ScriptsKey) // an error if there is none
	version, _ := reply.ToString()
	return version
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

// buildPrevious builds the previous release from its commit.
func buildPrevious(t *testing.T) programs {
	t.Helper()
	git := func(args ...string) *exec.Cmd {
		return exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", "../.."}, args...)...)
	}
	if out, err := git("cat-file", "-e", previousCommit+"^{commit}").CombinedOutput(); err != nil {
		t.Fatalf("commit %s of release %s is missing: use a complete clone (git fetch --unshallow)\n%s", previousCommit, previousVersion, out)
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "source.tar")
	runCommand(t, git("archive", "--output="+archive, previousCommit))
	runCommand(t, exec.Command("tar", "-xf", archive, "-C", dir))
	if err := os.CopyFS(filepath.Join(dir, "cmd/upgrade-runtime"), os.DirFS("testdata/runtime")); err != nil {
		t.Fatal(err)
	}
	build(t, dir, dir, "./cmd/telapi", "./cmd/upgrade-runtime")
	return programs{service: boot.Program(filepath.Join(dir, "telapi")), runtime: filepath.Join(dir, "upgrade-runtime")}
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
