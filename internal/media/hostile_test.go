package media_test

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"telapi/internal/media"
	"telapi/test/testkit"
)

const canary = "secret outside the root"

// tree returns all files below a directory with their type and content. It does not
// follow links.
func tree(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		files[path] = d.Type().String()
		if d.Type().IsRegular() {
			body, err := os.ReadFile(path)
			files[path] += string(body)
			return err
		}
		return nil
	})
	testkit.Must(t, err)
	return files
}

// filesBelow lists all files below a directory in order.
func filesBelow(t *testing.T, root string) (names []string) {
	t.Helper()
	for path, entry := range tree(t, root) {
		if !strings.HasPrefix(entry, "d") {
			names = append(names, strings.TrimPrefix(path, root+"/"))
		}
	}
	slices.Sort(names)
	return names
}

// hostilePaths returns paths that try to leave the root in many encodings.
func hostilePaths(n int) []string {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	dots := func() string {
		return pick("..", ".", "...", "%2e%2e", "%2e", ".%2e", "%252e%252e", "..;", "..%00", "..%c0%af", "%c0%ae%c0%ae", "..\x00", "..\\", "%uff0e%uff0e", "\u2025", "..\xff")
	}
	slash := func() string {
		return pick("/", "/", "//", "%2f", "%2F", "\\", "%5c", "%252f", "/./", "%c0%af", "\uff0f")
	}
	name := func() string {
		return pick("secret.pcm", "secret.pcm", "link.pcm", "pipe.pcm", "folder.pcm", "ok.pcm", ".lock", ".uploads", "passwd", "secret.pcm%00.alaw", "secret.pcm\x00.alaw",
			"secret.pcm/", "secret.pcm/.", "secret.pcm?x.pcm", "secret.pcm#.pcm", "secret.PCM", "secret.wav", ".pcm", "a b.pcm", "a+b.pcm", "ä.pcm", "%61.pcm",
			strings.Repeat("n", 252)+".pcm", strings.Repeat("n", 300)+".pcm", strings.Repeat("n", 3000)+".alaw", "con.pcm.alaw", "~.pcm", "*.pcm", "$(id).pcm", "\r\nX: y.pcm")
	}
	shard := func() string {
		return pick("ab", "out", "in", "loop", "outside", dots(), ".", "%61%62", "ab%20", "proc", "etc", ".lock", ".uploads", strings.Repeat("s", 256), "-", "_")
	}
	prefix := func() string {
		return pick("/media/", "/media/", "/media/", "/media", "/media//", "/Media/", "/media/../", "/./media/", "//media/", "/media%2f", "/health/../media/",
			"/media/./", "http://h/media/", "http://h/../media/", "file:///", "/%6dedia/", "/", "", "*", "\\media\\", "/media;x/")
	}
	paths := make([]string, 0, n)
	for len(paths) < n {
		p := prefix() + shard() + slash()
		for range rng.IntN(4) {
			p += dots() + slash()
		}
		if rng.IntN(4) == 0 {
			p += pick("outside", "etc", "ab", "proc/self") + slash()
		}
		paths = append(paths, p+name())
	}
	return paths
}

// No path reads or writes files outside the root, or files inside that are not
// blobs.
func TestHostilePathsNeverLeaveTheRoot(t *testing.T) {
	base := t.TempDir()
	outside, root := filepath.Join(base, "outside"), filepath.Join(base, "root")
	for _, dir := range []string{outside, filepath.Join(root, "ab", "folder.pcm")} {
		testkit.Must(t, os.MkdirAll(dir, 0o755))
	}
	for _, name := range []string{"secret.pcm", "passwd", "ok.pcm", "link.pcm"} {
		testkit.Must(t, os.WriteFile(filepath.Join(outside, name), []byte(canary), 0o644))
		testkit.Must(t, os.WriteFile(filepath.Join(base, name), []byte(canary), 0o644))
	}
	for link, target := range map[string]string{
		"out": outside, "in": "ab", "loop": "loop", "_": "/", "-": "../outside",
		"ab/link.pcm": filepath.Join(outside, "secret.pcm"), "ab/secret.pcm": "../../outside/secret.pcm", "ab/inside.pcm": "ok.pcm",
	} {
		testkit.Must(t, os.Symlink(target, filepath.Join(root, link)))
	}
	testkit.Must(t, mkfifo(filepath.Join(root, "ab", "pipe.pcm")))
	before := tree(t, base)

	s := start(t, media.Options{Root: root, MemoryBytes: 1 << 20}, nil)
	s.mustPut("/media/ab/ok.pcm", "fine")
	for _, shard := range []string{"out", "in", "loop", "_", "-", "ab"} {
		for _, name := range []string{"secret.pcm", "link.pcm", "pipe.pcm", "folder.pcm", "inside.pcm", "ok.pcm"} {
			if shard+name == "abok.pcm" {
				continue
			}
			path := "/media/" + shard + "/" + name
			for _, method := range []string{"GET", "HEAD", "DELETE"} {
				if resp, text := s.do(method, path, ""); resp.StatusCode != 404 || strings.Contains(text, canary) {
					t.Errorf("%s %s: status %d, want 404 without the secret: %s", method, path, resp.StatusCode, text)
				}
			}
			// An upload replaces a link at the path of a blob, but not at that of a
			// shard.
			resp, text := s.do("PUT", path, "wrote")
			if replaceable := shard == "ab" && name != "folder.pcm"; replaceable && resp.StatusCode != 201 || !replaceable && (resp.StatusCode != 409 || !strings.Contains(text, "PATH_OCCUPIED")) {
				t.Errorf("PUT %s: status %d, want 201 for a replaceable path, otherwise 409: %s", path, resp.StatusCode, text)
			}
		}
	}
	statuses := map[string]int{}
	for i, path := range hostilePaths(5000) {
		method := []string{"GET", "PUT", "DELETE", "HEAD"}[i%4]
		body := ""
		if method == "PUT" {
			body = "Content-Length: 5\r\n\r\nwrote"
		} else {
			body = "\r\n"
		}
		status, text := s.raw(method+" "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"+body, method)
		statuses[fmt.Sprint(method, " ", status)]++
		if strings.Contains(text, canary) || status >= 500 && status != 505 || status/100 == 3 {
			t.Errorf("%s %q: status %d, want 2xx or 4xx without the secret: %s", method, path, status, text)
		}
		sent, err := url.ParseRequestURI(path)
		if status/100 != 2 || err != nil {
			continue
		}
		if _, good := media.ParsePath(strings.TrimPrefix(sent.EscapedPath(), media.Prefix)); !good {
			t.Errorf("%s %q: status %d for an invalid path", method, path, status)
		}
	}
	t.Log(statuses)
	after := tree(t, base)
	maps.DeleteFunc(after, func(path, file string) bool { // keeps forbidden changes
		previous, existed := before[path]
		unchanged := existed && previous == file
		rest, err := filepath.Rel(root, path)
		_, isBlob := media.ParsePath(rest)
		if err == nil && isBlob { // may have been changed, but not through a link
			return unchanged || !strings.Contains(file, canary)
		}
		return unchanged || rest == ".lock" || file == "d---------" && (!strings.Contains(rest, "/") || strings.HasPrefix(rest, ".uploads/"))
	})
	if len(after) > 0 {
		t.Errorf("changed files outside the root, or files that are not blobs: %q", after)
	}
	for path := range before {
		if _, err := os.Lstat(path); err != nil && !strings.HasPrefix(path, root) {
			t.Errorf("%s outside the root is gone: %v", path, err)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, p := range hostilePaths(50) {
		f.Add(p)
	}
	f.Add("ab/x.pcm")
	f.Fuzz(func(t *testing.T, s string) {
		p, ok := media.ParsePath(s)
		if !ok {
			return
		}
		if string(p) != s || !filepath.IsLocal(s) || filepath.Clean(s) != s || strings.Count(s, "/") != 1 || strings.Count(s, ".") != 1 || strings.HasPrefix(s, ".") {
			t.Errorf("accepted invalid path %q", s)
		}
	})
}
