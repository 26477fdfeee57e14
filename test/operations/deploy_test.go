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
)

// TestComposeFileIsAConfigurationThatServes makes the secrets as the file tells
// and loads what every container would be given. No container is started here.
func TestComposeFileIsAConfigurationThatServes(t *testing.T) {
	dir := t.TempDir()
	run(t, ".", "cp", "-r", "../../deploy/docker/compose.yaml", "../../deploy/docker/make-secrets.sh", dir)
	run(t, dir, "./make-secrets.sh", "telapi.example")
	run(t, dir, "openssl", "verify", "-CAfile", "tls/ca.pem", "tls/media.pem")
	before := run(t, dir, "cat", ".env")
	run(t, dir, "./make-secrets.sh", "telapi.example")
	if after := run(t, dir, "cat", ".env"); after != before {
		t.Error("secrets that exist were made anew")
	}

	values := map[string]string{}
	for line := range strings.Lines(before) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = value
	}
	raw, err := os.ReadFile(filepath.Join(dir, "compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	filled := os.Expand(string(raw), func(name string) string {
		if name == "$" {
			return name
		}
		if values[name] == "" {
			t.Errorf("compose.yaml wants %s, which make-secrets.sh does not make", name)
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
	if _, err := yaml.Unmarshal([]byte(filled), &file, yaml.DecodeOpts{}); err != nil {
		t.Fatal(err)
	}
	for name, service := range file.Services {
		if said := fmt.Sprint(service.Command, service.Healthcheck); strings.Contains(said, values["REDIS_PASSWORD"]) {
			t.Errorf("%s has the password on a command line: %s", name, said)
		}
	}
	for name, mode := range map[string]config.Mode{"telapi-1": config.Serve, "telapi-2": config.Serve, "media": config.Tool} {
		service := file.Services[name]
		var env []string
		for n, v := range service.Environment {
			env = append(env, n+"="+v)
		}
		if _, warnings, err := config.Load(env, mode); err != nil || len(warnings) > 0 || len(env) == 0 || !service.ReadOnly {
			t.Errorf("%s: %v %v, read only: %v", name, err, warnings, service.ReadOnly)
		}
		for _, setting := range env {
			n, _, _ := strings.Cut(setting, "=")
			if !known(n) {
				t.Errorf("%s sets %s, which nothing reads", name, n)
			}
		}
	}
}

func known(name string) bool {
	cfg, _, _ := config.Load(nil, config.Tool)
	for _, s := range cfg.Effective() {
		if s.Name == name {
			return true
		}
	}
	return false
}

// TestUnitsAreWhatSystemdUnderstands asks systemd itself, where it is installed.
func TestUnitsAreWhatSystemdUnderstands(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Log("systemd-analyze is not installed: the units were read, not verified")
	}
	for unit, as := range map[string]string{"telapi@.service": "telapi@3001.service", "telapi-media.service": "telapi-media.service"} {
		raw, err := os.ReadFile(filepath.Join("../../deploy/systemd", unit))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes", "TimeoutStopSec=40"} {
			if !strings.Contains(string(raw), want) {
				t.Errorf("%s lacks %s", unit, want)
			}
		}
		if analyze == "" {
			continue
		}
		// The program need not be installed for its unit to be verified.
		file := filepath.Join(t.TempDir(), as)
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(raw), "/usr/local/bin/telapi ", "/bin/true ")), 0o600); err != nil {
			t.Fatal(err)
		}
		if said := run(t, ".", analyze, "verify", file); strings.Contains(said, as) {
			t.Errorf("systemd-analyze says:\n%s", said)
		}
	}
}
