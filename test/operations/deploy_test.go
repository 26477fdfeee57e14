package operations

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oasdiff/yaml"

	"telapi/internal/config"
	"telapi/test/testkit"
)

// No container is started. The test runs make-secrets.sh and loads the
// configuration of every container.
func TestComposeFileIsValidConfiguration(t *testing.T) {
	dir := t.TempDir()
	run(t, ".", "cp", "-r", "../../deploy/docker/compose.yaml", "../../deploy/docker/make-secrets.sh", dir)
	run(t, dir, "./make-secrets.sh", "telapi.example")
	run(t, dir, "openssl", "verify", "-CAfile", "tls/ca.pem", "tls/media.pem")
	before := run(t, dir, "cat", ".env")
	run(t, dir, "./make-secrets.sh", "telapi.example")
	if after := run(t, dir, "cat", ".env"); after != before {
		t.Error("existing secrets were replaced")
	}

	values := map[string]string{}
	for line := range strings.Lines(before) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = value
	}
	raw, err := os.ReadFile(filepath.Join(dir, "compose.yaml"))
	testkit.Must(t, err)
	expanded := os.Expand(string(raw), func(name string) string {
		if name == "$" {
			return name
		}
		if values[name] == "" {
			t.Errorf("compose.yaml needs %s, which make-secrets.sh does not create", name)
		}
		return values[name]
	})
	var file struct {
		Services map[string]struct {
			Command, Healthcheck any
			Environment          map[string]string
			ReadOnly             bool `json:"read_only"`
		}
	}
	testkit.Must(t, testkit.ErrorOf(yaml.Unmarshal([]byte(expanded), &file, yaml.DecodeOpts{})))
	for name, service := range file.Services {
		if line := fmt.Sprint(service.Command, service.Healthcheck); strings.Contains(line, values["REDIS_PASSWORD"]) {
			t.Errorf("%s has the password on a command line: %s", name, line)
		}
	}
	for name, mode := range map[string]config.Mode{"telapi-1": config.Serve, "telapi-2": config.Serve, "media": config.Tool} {
		service := file.Services[name]
		var env []string
		for variable, value := range service.Environment {
			env = append(env, variable+"="+value)
		}
		if _, warnings, err := config.Load(env, mode); err != nil || len(warnings) > 0 || len(env) == 0 || !service.ReadOnly {
			t.Errorf("%s: error %v, warnings %v, %d settings, read only: %v; want settings without problems and a read-only container", name, err, warnings, len(env), service.ReadOnly)
		}
		for variable := range service.Environment {
			if !isSetting(variable) {
				t.Errorf("%s sets unknown variable %s", name, variable)
			}
		}
	}
}

// isSetting reports whether telapi has a setting with this name.
func isSetting(name string) bool {
	cfg, _, _ := config.Load(nil, config.Tool)
	for _, s := range cfg.Effective() {
		if s.Name == name {
			return true
		}
	}
	return false
}

func TestSystemdUnitsAreValid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is not installed: only the settings are checked")
	}
	for unit, instance := range map[string]string{"telapi@.service": "telapi@3001.service", "telapi-media.service": "telapi-media.service"} {
		raw, err := os.ReadFile(filepath.Join("../../deploy/systemd", unit))
		testkit.Must(t, err)
		testkit.Contains(t, "unit", string(raw), "DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "TimeoutStopSec=40")
		if analyze == "" {
			continue
		}
		// systemd-analyze requires that the program exists.
		file := filepath.Join(t.TempDir(), instance)
		testkit.Must(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(raw), "/usr/local/bin/telapi ", "/bin/true ")), 0o600))
		if out := run(t, ".", analyze, "verify", file); strings.Contains(out, instance) {
			t.Errorf("systemd-analyze:\n%s", out)
		}
	}
}
