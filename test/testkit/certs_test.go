package testkit

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strconv"
	"testing"
)

func TestCertificateIsValidForItsHosts(t *testing.T) {
	ca := NewCA(t)
	caFile, certFile, keyFile := ca.Files(t, t.TempDir(), "db.example", "127.0.0.1")
	if caFile == "" {
		t.Fatal("Files returned no CA file")
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, host string
		ca         *CA
		valid      bool
	}{
		{"host name", "db.example", ca, true},
		{"address", "127.0.0.1", ca, true},
		{"other host", "other.example", ca, false},
		{"other CA", "db.example", NewCA(t), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := leaf.Verify(x509.VerifyOptions{DNSName: tt.host, Roots: tt.ca.Roots()})
			if (err == nil) != tt.valid {
				t.Errorf("Verify returned %v, want valid: %v", err, tt.valid)
			}
		})
	}
}

func TestFreePortIsReturnedOnce(t *testing.T) {
	returned := map[int]bool{}
	for range 500 { // two of them would be equal without a reservation
		port := FreePort(t)
		if returned[port] {
			t.Fatalf("port %d was returned twice", port)
		}
		returned[port] = true
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}
