package calls_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"telapi/internal/calls"
)

func TestLocateParsesRedisURL(t *testing.T) {
	cases := map[string]struct {
		addrs          []string
		user, password string
		db             int
		tls            bool
	}{
		"redis://127.0.0.1:7000":                      {addrs: []string{"127.0.0.1:7000"}},
		"redis://kv":                                  {addrs: []string{"kv:6379"}},
		"redis://:s3cret@kv:7000/3":                   {addrs: []string{"kv:7000"}, password: "s3cret", db: 3},
		"rediss://app:s%2Fcret@kv1:7000,kv2:7001,kv3": {addrs: []string{"kv1:7000", "kv2:7001", "kv3:6379"}, user: "app", password: "s/cret", tls: true},
		"redis://[::1]:7000,[::2]:7001":               {addrs: []string{"[::1]:7000", "[::2]:7001"}},
	}
	for url, want := range cases {
		got, err := calls.Locate(url, "")
		if err != nil || !slices.Equal(got.InitAddress, want.addrs) || got.Username != want.user || got.Password != want.password ||
			got.SelectDB != want.db || (got.TLSConfig != nil) != want.tls {
			t.Errorf("%s: addresses %v, user %q, password %q, database %d, TLS %t, %v; want %+v", url, got.InitAddress, got.Username, got.Password, got.SelectDB, got.TLSConfig != nil, err, want)
		}
	}
}

func TestLocateErrorsOmitPassword(t *testing.T) {
	damaged := t.TempDir()
	if err := os.WriteFile(filepath.Join(damaged, "embedded-kv.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][2]string{{"http://:s3cret@kv", ""}, {"redis://:s3cret@kv:x y", ""}, {"redis://:s3cret@kv/db", ""}, {"", t.TempDir()}, {"", damaged}} {
		if _, err := calls.Locate(args[0], args[1]); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("Locate(%q, %q) returned %v, want an error without the password", args[0], args[1], err)
		}
	}
}

func TestNewRequiresName(t *testing.T) {
	if _, err := calls.New(calls.Options{}); err == nil {
		t.Error("New accepted options without a name")
	}
}
