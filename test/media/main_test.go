// Package media tries the media service as a process: killed, without room, on a
// disk that fails, and told to end.
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
	"syscall"
	"testing"
	"time"

	"telapi/test/boot"
)

// service is `telapi media`, running.
type service struct {
	*boot.Process
	url  string
	root string
}

var listening = regexp.MustCompile(`"msg":"telapi media is listening","url":"([^"]+)"`)

// start runs the program on a root.
func start(t *testing.T, root string, env boot.Env) *service {
	t.Helper()
	full := boot.Env{"MEDIA_PORT": "0", "MEDIA_HOST": "127.0.0.1", "MEDIA_ROOT": root, "LOG_FORMAT": "json", "DRAIN_DELAY": "0s"}
	for name, value := range env {
		full[name] = value
	}
	s := &service{Process: boot.StartProcess(t, full, "media"), root: root}
	boot.Eventually(t, 30*time.Second, "the service listens", func() bool {
		found := listening.FindStringSubmatch(s.Stderr.String())
		if found != nil {
			s.url = found[1]
		}
		return found != nil || s.Ended(0)
	})
	if s.url == "" {
		t.Fatalf("ended at start:\n%s", s.Stderr)
	}
	return s
}

// client gives every answer a bounded time.
var client = &http.Client{Timeout: 30 * time.Second}

// ask sends a request; status 0 means that no whole answer came.
func (s *service) ask(method, path, body string) (status int, answer string) {
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

func (s *service) want(t *testing.T, method, path, body string, status int, says string) {
	t.Helper()
	if got, answer := s.ask(method, path, body); got != status || !strings.Contains(answer, says) {
		t.Errorf("%s %s: %d %.200s, want %d %.200s", method, path, got, answer, status, says)
	}
}

// files are those below the root, but for the lock.
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

func (s *service) kill() {
	_ = s.Cmd.Process.Signal(syscall.SIGKILL)
	s.Ended(10 * time.Second)
}

// body is a text of about n bytes that shows whether it is whole.
func body(version, n int) string {
	line := fmt.Sprintf("version %d\n", version)
	return strings.Repeat(line, n/len(line)) + "end " + fmt.Sprint(version)
}

// versionOf is the version of a whole body, -1 of any other.
func versionOf(text string) (version int) {
	if _, err := fmt.Sscanf(text, "version %d\n", &version); err != nil || !strings.HasSuffix(text, fmt.Sprint("\nend ", version)) {
		return -1
	}
	if text != body(version, len(text)) {
		return -1
	}
	return version
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
