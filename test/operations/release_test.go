package operations

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// The release is built in two clones with different paths. The test also verifies the
// signature, and uses an archive and a package.
func TestReleaseIsReproducible(t *testing.T) {
	keys := t.TempDir()
	run(t, keys, "openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "key.pem")
	run(t, keys, "openssl", "pkey", "-in", "key.pem", "-pubout", "-out", "key.pub")
	t.Setenv("RELEASE_SIGNING_KEY", run(t, keys, "cat", "key.pem"))
	t.Setenv("RELEASE_ARCHS", "amd64") // one is enough to compare builds
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
	// Archive, package and bill of materials of the service, the SDK and its bill, the
	// chart and the release notes.
	if !bytes.Equal(sums[0], sums[1]) || bytes.Count(sums[0], []byte("\n")) != 7 {
		t.Errorf("checksums of two builds are\n%s\nand\n%s\nwant the same seven lines", sums[0], sums[1])
	}

	dist := filepath.Join(dirs[0], "dist")
	version := strings.TrimSpace(run(t, dirs[0], "cat", "VERSION"))
	name := "telapi-" + version + "-linux-amd64"
	run(t, dist, "sha256sum", "--check", "SHA256SUMS")
	verify := "base64 --decode SHA256SUMS.sig >signature && openssl dgst -sha256 -verify " + keys + "/key.pub -signature signature "
	run(t, dist, "sh", "-c", verify+"SHA256SUMS")
	if exec.CommandContext(t.Context(), "sh", "-c", "cd "+dist+" && "+verify+"RELEASE_NOTES.md").Run() == nil {
		t.Error("the signature is valid for another file")
	}
	run(t, dist, "tar", "-xzf", name+".tar.gz")
	if got := run(t, dist, "./"+name+"/telapi", "version"); !strings.Contains(got, version) {
		t.Errorf("the binary in the archive prints %q, want %s in it", got, version)
	}
	if sbom, want := run(t, dist, "cat", name+".sbom.json"), "pkg:golang/github.com/redis/rueidis@"; !strings.Contains(sbom, want) {
		t.Errorf("the SBOM does not list %s", want)
	}
	for _, file := range []string{"docs/operations.md", "LICENSE", "NOTICE", "THIRD_PARTY_LICENSES", "man/telapi-serve.1", "completions/telapi.bash", "deploy/helm/telapi/Chart.yaml"} {
		if info, err := os.Stat(filepath.Join(dist, name, file)); err != nil || info.Size() == 0 {
			t.Errorf("%s is missing in the archive or empty: %v", file, err)
		}
	}
	if notes := run(t, dist, "cat", "RELEASE_NOTES.md"); !strings.HasPrefix(notes, "## "+version) || strings.Count(notes, "\n## ") > 0 {
		t.Errorf("release notes are not the section of %s:\n%.200s", version, notes)
	}
	checkDebianPackage(t, filepath.Join(dist, "telapi_"+version+"_amd64.deb"), version)
}

// checkDebianPackage installs, removes and purges the package in a directory with
// an empty package database. The scripts of the package run outside of it and must
// not change this machine.
func checkDebianPackage(t *testing.T, file, version string) {
	t.Helper()
	root := t.TempDir()
	run(t, root, "sh", "-c", "mkdir -p var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers && touch var/lib/dpkg/status var/lib/dpkg/available")
	dpkg := func(args ...string) string {
		t.Helper()
		// Minimal images exclude manual pages.
		command := []string{"dpkg", "--root=" + root, "--force-script-chrootless", "--path-include=/usr/share/*"}
		if os.Geteuid() != 0 {
			command = append([]string{"unshare", "--map-root-user"}, command...)
		}
		return run(t, ".", command[0], append(command[1:], args...)...)
	}
	exists := func(name string) bool {
		_, err := os.Lstat(filepath.Join(root, name))
		return err == nil
	}

	dpkg("--install", file)
	if got := run(t, root, "./usr/bin/telapi", "version"); !strings.Contains(got, version) {
		t.Errorf("the installed binary prints %q, want %s in it", got, version)
	}
	for _, unit := range []string{"telapi@.service", "telapi-media.service"} {
		if text := run(t, root, "cat", "usr/lib/systemd/system/"+unit); !strings.Contains(text, "ExecStart=/usr/bin/telapi ") {
			t.Errorf("%s does not start the installed binary", unit)
		}
	}
	for _, name := range []string{
		"usr/share/man/man1/telapi.1.gz", "usr/share/man/man1/telapi-endpoint-create.1.gz", "usr/share/zsh/vendor-completions/_telapi",
		"usr/share/fish/vendor_completions.d/telapi.fish", "usr/share/doc/telapi/copyright", "usr/share/doc/telapi/docs/operations.md",
	} {
		if !exists(name) {
			t.Errorf("%s is not installed", name)
		}
	}
	run(t, root, "bash", "-c", ". usr/share/bash-completion/completions/telapi && complete -p telapi")
	settings := filepath.Join(root, "etc/telapi/telapi.env")
	if info, err := os.Stat(settings); err != nil || info.Mode() != 0o600 {
		t.Errorf("telapi.env: %v, error %v; want mode 0600", info.Mode(), err)
	}
	testkit.Must(t, os.WriteFile(settings, []byte("JWT_SECRET=changed\n"), 0o600))

	dpkg("--install", file)
	dpkg("--remove", "telapi")
	if text := run(t, root, "cat", "etc/telapi/telapi.env"); text != "JWT_SECRET=changed\n" {
		t.Errorf("reinstalling and removing the package changed telapi.env to %q", text)
	}
	if exists("usr/bin/telapi") || exists("usr/share/man/man1/telapi.1.gz") {
		t.Error("files are left after the package was removed")
	}
	dpkg("--purge", "telapi")
	if exists("etc/telapi") {
		t.Error("/etc/telapi is left after the package was purged")
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
