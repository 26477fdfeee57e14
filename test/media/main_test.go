// Package media tests the media service as a process: killed, on a full or failing
// disk, and shut down.
package media

import (
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"telapi/test/harness"
	"telapi/test/testkit"
)

// service is a running `telapi media` process.
type service struct {
	*harness.Process
	url  string
	root string
}

var listening = regexp.MustCompile(`"msg":"telapi media is listening","url":"([^"]+)"`)

// start runs the service on a root directory.
func start(t *testing.T, root string, env harness.Env) *service {
	t.Helper()
	full := harness.Env{"MEDIA_PORT": "0", "MEDIA_HOST": "127.0.0.1", "MEDIA_ROOT": root, "LOG_FORMAT": "json", "DRAIN_DELAY": "0s"}
	for name, value := range env {
		full[name] = value
	}
	s := &service{Process: harness.StartProcess(t, full, "media"), root: root}
	testkit.Until(t, "the service is listening", func() bool {
		found := listening.FindStringSubmatch(s.Stderr.String())
		if found != nil {
			s.url = found[1]
		}
		return found != nil || s.Exited()
	})
	if s.url == "" {
		t.Fatalf("the service exited during startup:\n%s", s.Stderr)
	}
	return s
}

var client = &http.Client{Timeout: testkit.Timeout}

// request sends a request. The status is 0 if there is no complete response.
func (s *service) request(method, path, body string) (status int, response string) {
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(text)
}

// want sends a request and checks the status and a part of the response.
func (s *service) want(t *testing.T, method, path, body string, status int, text string) {
	t.Helper()
	if got, response := s.request(method, path, body); got != status || !strings.Contains(response, text) {
		t.Errorf("%s %s: %d %.200s, want %d %.200s", method, path, got, response, status, text)
	}
}

// files lists the files below the root, without the lock file.
func (s *service) files(t *testing.T) (names []string) {
	t.Helper()
	if err := filepath.WalkDir(s.root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Dir(name) != s.root {
			names = append(names, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

func (s *service) kill(t *testing.T) {
	t.Helper()
	_ = s.Cmd.Process.Kill()
	s.WaitExit(t)
}

// body returns about n bytes in which versionOf detects truncation.
func body(version, n int) string {
	line := fmt.Sprintf("version %d\n", version)
	return strings.Repeat(line, n/len(line)) + "end " + fmt.Sprint(version)
}

// versionOf returns the version of a complete body, or -1.
func versionOf(text string) (version int) {
	if _, err := fmt.Sscanf(text, "version %d\n", &version); err != nil || !strings.HasSuffix(text, fmt.Sprint("\nend ", version)) {
		return -1
	}
	if text != body(version, len(text)) {
		return -1
	}
	return version
}

func readFile(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	testkit.Must(t, err)
	return string(content)
}
