package operations

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The release is built in two clones with different paths, for one architecture
// to save time. The test also runs the binary of an archive.
func TestReleaseIsReproducible(t *testing.T) {
	t.Setenv("RELEASE_ARCHS", "amd64")
	var sums [2][]byte
	dirs := [2]string{filepath.Join(t.TempDir(), "first"), filepath.Join(t.TempDir(), "other", "second")}
	for n, dir := range dirs {
		run(t, "../..", "git", "clone", "--quiet", "--no-hardlinks", ".", dir)
		run(t, dir, "scripts/release.sh")
		var err error
		if sums[n], err = os.ReadFile(filepath.Join(dir, "dist/SHA256SUMS")); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(sums[0], sums[1]) || bytes.Count(sums[0], []byte("\n")) != 2 {
		t.Errorf("checksums of two builds are\n%s\nand\n%s\nwant the same two lines", sums[0], sums[1])
	}

	dist := filepath.Join(dirs[0], "dist")
	version := strings.TrimSpace(run(t, dirs[0], "cat", "VERSION"))
	name := "telapi-" + version + "-linux-amd64"
	run(t, dist, "sha256sum", "--check", "SHA256SUMS")
	run(t, dist, "tar", "-xzf", name+".tar.gz")
	if got := run(t, dist, "./"+name+"/telapi", "version"); !strings.Contains(got, version) {
		t.Errorf("the binary in the archive prints %q, want %s in it", got, version)
	}
	if sbom := run(t, dist, "cat", name+".sbom.json"); !strings.Contains(sbom, "pkg:golang/github.com/redis/rueidis@") {
		t.Error("the SBOM does not list rueidis")
	}
	if _, err := os.Stat(filepath.Join(dist, name, "docs/operations.md")); err != nil {
		t.Error(err)
	}
}

// run runs a program and returns its output.
func run(t *testing.T, dir, program string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}
