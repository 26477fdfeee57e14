package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA is a certificate authority for one test.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA creates a CA.
func NewCA(t testing.TB) *CA {
	t.Helper()
	key := newKey(t)
	template := newTemplate(t, "telapi test CA")
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	Must(t, err)
	cert, err := x509.ParseCertificate(der)
	Must(t, err)
	return &CA{cert, key}
}

// PEM returns the certificate of the CA.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// Roots returns a pool that contains only the CA.
func (ca *CA) Roots() *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return roots
}

// ClientTLS returns the configuration of a client that trusts only the CA.
func (ca *CA) ClientTLS() *tls.Config {
	return &tls.Config{RootCAs: ca.Roots(), MinVersion: tls.VersionTLS12}
}

// Issue creates a server and client certificate for host names and IP addresses.
func (ca *CA) Issue(t testing.TB, hosts ...string) (certPEM, keyPEM []byte) {
	t.Helper()
	key := newKey(t)
	template := newTemplate(t, "telapi test")
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	Must(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// Files issues a certificate and writes it, its key and the certificate of the CA
// to dir.
func (ca *CA) Files(t testing.TB, dir string, hosts ...string) (caFile, certFile, keyFile string) {
	t.Helper()
	certPEM, keyPEM := ca.Issue(t, hosts...)
	write := func(name string, content []byte, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		Must(t, os.WriteFile(path, content, mode))
		return path
	}
	return write("ca.pem", ca.PEM(), 0o644), write("cert.pem", certPEM, 0o644), write("key.pem", keyPEM, 0o600)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Must(t, err)
	return key
}

func newTemplate(t testing.TB, name string) *x509.Certificate {
	t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	Must(t, err)
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}
