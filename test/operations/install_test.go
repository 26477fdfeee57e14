package operations

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/testkit"
)

// The script runs in a PATH that has only the tools it needs before it installs
// something, so that all servers are missing.
func TestInstallServersListsMissingPackages(t *testing.T) {
	for name, tt := range map[string]struct {
		programs map[string]string // fakes on the PATH, as shell scripts
		args     []string
		want     string
	}{
		"list":    {nil, []string{"test", "--list"}, "Tests need servers that are not installed."},
		"no apt":  {nil, []string{"check"}, "apt-get is not available"},
		"no root": {map[string]string{"apt-get": "exit 1", "id": "echo 1000"}, []string{"test"}, "neither root nor allowed to use sudo"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bin := t.TempDir()
			for _, tool := range []string{"bash", "cat"} {
				path, err := exec.LookPath(tool)
				testkit.Must(t, err)
				testkit.Must(t, os.Symlink(path, filepath.Join(bin, tool)))
			}
			for program, script := range tt.programs {
				testkit.Must(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "bash"), append([]string{"../../scripts/install-servers.sh"}, tt.args...)...)
			cmd.Env = []string{"PATH=" + bin}
			out, _ := cmd.CombinedOutput()
			for _, want := range []string{tt.want, "Missing packages: ", "redis-server", "sudo apt-get update"} {
				if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(string(out), want) {
					t.Errorf("exit code %d, output %q; want 1 and %q", code, out, want)
				}
			}
		})
	}
}
