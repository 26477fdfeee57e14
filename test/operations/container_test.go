package operations

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// podman runs containers with storage of its own.
type podman struct {
	t       *testing.T
	storage []string // arguments that buildah and podman have in common
}

func newPodman(t *testing.T) podman {
	t.Helper()
	testkit.Podman(t)
	dir, err := os.MkdirTemp("", "podman") // podman requires a short path
	testkit.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return podman{t, []string{"--storage-driver", "vfs", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run")}}
}

// command returns a command. crun, Debian's default, rejects the control groups of
// a container, in which these tests may run themselves.
func (p podman) command(args ...string) *exec.Cmd {
	all := append(append([]string{}, p.storage...), "--runtime", "runc", "--cgroup-manager", "cgroupfs")
	return exec.CommandContext(p.t.Context(), "podman", append(all, args...)...)
}

func (p podman) run(args ...string) string {
	p.t.Helper()
	cmd, stderr := p.command(args...), &bytes.Buffer{}
	cmd.Stderr = stderr // has warnings where systemd does not run
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("podman %v: %v\n%s", args, err, stderr)
	}
	return strings.TrimSpace(string(out))
}

// start starts a container with a read-only root file system and without
// privileges, on the host's network, and waits until it is healthy.
func (p podman) start(name string, env harness.Env, args ...string) (url string) {
	p.t.Helper()
	port := fmt.Sprint(testkit.FreePort(p.t))
	options := []string{"run", "--detach", "--name", name, "--network", "host", "--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges",
		"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--env", "TELAPI_PORT=" + port}
	for variable, value := range harness.Merge(harness.Env{"OTEL_ENABLED": "false", "MEDIA_PORT": "0"}, env) {
		options = append(options, "--env", variable+"="+value)
	}
	p.run(append(append(options, "telapi:test"), args...)...)
	p.t.Cleanup(func() {
		if p.t.Failed() {
			logs, _ := exec.Command("podman", append(p.storage, "logs", name)...).CombinedOutput()
			p.t.Logf("log of %s:\n%s", name, logs)
		}
		_ = exec.Command("podman", append(p.storage, "rm", "--force", "--time", "0", name)...).Run()
	})
	url = "http://127.0.0.1:" + port
	testkit.Until(p.t, name+" is healthy", func() bool { return health(url) == http.StatusOK })
	return url
}

func health(url string) int {
	return (&harness.Instance{URL: url, Client: http.DefaultClient}).HealthStatus()
}

// The image is built from a binary, because CI cannot pull the image of Go.
func TestContainerRunsWithoutPrivilegesAndDrains(t *testing.T) {
	t.Parallel()
	p := newPodman(t)
	archive := t.TempDir()
	repository, err := filepath.Abs("../..")
	testkit.Must(t, err)
	binary, err := harness.Binary()
	testkit.Must(t, err)
	run(t, archive, "cp", "-r", binary, filepath.Join(repository, "deploy"), filepath.Join(repository, "LICENSE"), filepath.Join(repository, "NOTICE"), ".")
	run(t, archive, "touch", "THIRD_PARTY_LICENSES")
	image := exec.CommandContext(t.Context(), "deploy/docker/build-from-binary.sh", "telapi:test")
	image.Dir = archive
	image.Env = append(os.Environ(), "BUILD=buildah "+strings.Join(p.storage, " ")+" bud --isolation chroot --format docker")
	if out, err := image.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	p.start("dev", nil, "dev")
	stores, _ := harness.RealStores(t)
	url := p.start("serve", harness.Merge(stores, harness.Env{"JWT_SECRET": harness.Secret, "DRAIN_DELAY": "15s"})) // long enough to see the 503 on a busy machine
	p.run("healthcheck", "run", "serve")
	pid := p.run("inspect", "--format", "{{.State.Pid}}", "serve")
	status, err := os.ReadFile("/proc/" + pid + "/status")
	testkit.Must(t, err)
	for _, want := range []string{"Uid:\t65532\t", "Gid:\t65532\t", "NoNewPrivs:\t1", "CapEff:\t0000000000000000"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("the process does not have %q:\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	testkit.Must(t, err)
	if first, _, _ := strings.Cut(string(mounts), "\n"); !strings.Contains(first, " / ro,") {
		t.Errorf("the root file system is not read-only: %s", first)
	}

	p.run("kill", "--signal", "TERM", "serve")
	testkit.Until(t, "the draining instance returns 503", func() bool { return health(url) == http.StatusServiceUnavailable })
	if code := p.run("wait", "serve"); code != "0" {
		t.Errorf("exit code %s after SIGTERM, want 0", code)
	}
	p.run("stop", "--time", "40", "dev")
	if code := p.run("inspect", "--format", "{{.State.ExitCode}}", "dev"); code != "0" {
		t.Errorf("telapi dev: exit code %s after SIGTERM, want 0", code)
	}
}
