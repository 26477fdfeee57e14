package media_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The root is often in DATA_DIR, which must not be readable by other users, and may be
// created first.
func TestOnlyOwnerCanReadFiles(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	dataDir := filepath.Join(t.TempDir(), "data")
	s := openStore(t, filepath.Join(dataDir, "media"), 0)
	defer s.Close()
	put(t, s, "ab/abc.pcm", "audio")
	err := filepath.WalkDir(dataDir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v, want none for group and others", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
