package media_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"telapi/internal/media"
	"telapi/test/speechtest"
)

func TestClientConformsToBlobStore(t *testing.T) {
	s := start(t, media.Options{}, nil)
	c, err := media.NewClient("http://"+s.addr, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	speechtest.TestBlobStore(t, c)
}

func TestDeleteKeepsModifiedBlob(t *testing.T) {
	s := start(t, media.Options{}, nil)
	c, err := media.NewClient("http://"+s.addr, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	const path = "ab/abc.pcm"
	put := func() (version string) {
		if err := c.Put(t.Context(), path, []byte("audio")); err != nil {
			t.Fatal(err)
		}
		_, version, err := c.Get(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		return version
	}
	expect := func(what string, want bool) func(bool, error) {
		return func(gone bool, err error) {
			t.Helper()
			if err != nil || gone != want {
				t.Errorf("%s: gone %v, %v; want %v", what, gone, err, want)
			}
		}
	}
	first := put()
	second := put()
	expect("replaced version", false)(c.DeleteVersion(t.Context(), path, first))
	expect("current version", true)(c.DeleteVersion(t.Context(), path, second))
	expect("missing blob", true)(c.DeleteVersion(t.Context(), path, second))

	put()
	modified := time.Unix(1_800_000_000, 9e8)
	if err := os.Chtimes(filepath.Join(s.root, path), modified, modified); err != nil {
		t.Fatal(err)
	}
	expect("modified later in the same second", false)(c.DeleteUnmodifiedSince(t.Context(), path, modified.Add(-time.Second/2)))
	expect("modified in the second before", true)(c.DeleteUnmodifiedSince(t.Context(), path, modified.Add(time.Second)))
}
