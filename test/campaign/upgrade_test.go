package campaign

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// Two releases run on the same stores while one replaces the other, instance by instance,
// and back again. Nothing is lost, duplicated or reordered. Before the second release, both
// are this one.
func TestRollingUpgradeAndRollback(t *testing.T) {
	t.Parallel()
	testkit.StartRedis(t) // requires redis-server, before the build
	var previous harness.Program
	if tag := previousRelease(t); tag != "" {
		previous = buildRelease(t, tag)
	}
	size := newSize(0)
	size.browsers, size.rate, size.ping = 12, 30, 3*time.Second
	c := newCampaign(t, size, false, previous)
	for _, step := range []struct {
		name    string
		n       int
		program harness.Program
	}{
		{"first instance upgraded", 0, ""},
		{"second instance upgraded", 1, ""},
		{"first instance rolled back", 0, previous},
		{"second instance rolled back", 1, previous},
	} {
		c.run(fault{name: step.name, inject: func(c *campaign, _ int) {
			c.Program = step.program
			c.restart(step.n)
			c.join(4) // sessions that begin now
		}}, 0)
	}
	c.check(t)
}

var releaseTag = regexp.MustCompile(`^v\d+\.\d+\.\d+(-patch\d+)?$`)

// previousRelease returns the newest tag of a release other than this one, or "".
func previousRelease(t *testing.T) string {
	t.Helper()
	version, err := os.ReadFile("../../VERSION")
	testkit.Must(t, err)
	tags, _ := git("tag", "--list", "--sort=-version:refname").Output() // fails outside of a repository
	for tag := range strings.FieldsSeq(string(tags)) {
		if releaseTag.MatchString(tag) && tag != "v"+strings.TrimSpace(string(version)) {
			return tag
		}
	}
	return ""
}

// buildRelease builds the service of a tag.
func buildRelease(t *testing.T, tag string) harness.Program {
	t.Helper()
	dir := t.TempDir()
	archive, binary := filepath.Join(dir, "source.tar"), filepath.Join(dir, "telapi")
	for _, cmd := range []*exec.Cmd{
		git("archive", "--output="+archive, tag),
		exec.Command("tar", "-xf", archive, "-C", dir),
		exec.Command("go", "-C", dir, "build", "-buildvcs=false", "-o", binary, "./cmd/telapi"),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
	}
	return harness.Program(binary)
}

func git(args ...string) *exec.Cmd {
	return exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", "../.."}, args...)...)
}
