package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	objects     = 2000      // files of each size
	memoryBytes = 256 << 20 // MEDIA_MEMORY_BYTES: enough for all objects
)

// gets are the GET workloads with their target ratio to nginx.
var gets = []struct {
	kib, connections int
	secure           bool
	target           float64
}{
	{24, 64, true, 1}, {96, 64, true, 1}, {24, 1000, true, 1}, {96, 1000, true, 1},
	{24, 64, false, 1}, {96, 64, false, 1}, {24, 1000, false, 0.9}, {96, 1000, false, 0.9},
}

// mediaGets compares GETs of the media service with nginx and the same files. Any
// failed request fails the benchmark.
func mediaGets(at *site, s settings) error {
	if err := raiseFileLimit(16_000); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(at.dir, "media")
	if err != nil {
		return err
	}
	trust, err := createCertificate(dir)
	if err != nil {
		return err
	}
	if err := createObjects(dir); err != nil {
		return err
	}
	peer, err := startNginx(dir)
	if err != nil {
		return err
	}
	defer peer.stop()
	plain, err := at.startMedia(filepath.Join(dir, "plain"))
	if err != nil {
		return err
	}
	defer plain.kill()
	secure, err := at.startMedia(filepath.Join(dir, "secure"), "MEDIA_TLS_CERT_FILE="+dir+"/cert.pem", "MEDIA_TLS_KEY_FILE="+dir+"/key.pem")
	if err != nil {
		return err
	}
	defer secure.kill()

	fmt.Printf("random GETs of %d files; nginx with sendfile, open_file_cache and no log; TLS 1.3 with AES-128-GCM\n", objects)
	for _, g := range gets {
		requests := make([][]byte, objects)
		for i := range requests {
			requests[i] = fmt.Appendf(nil, "GET /media/%s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", objectName(g.kib, i))
		}
		ours, baseline, config, scheme := plain, server{peer.process, peer.plain}, (*tls.Config)(nil), "HTTP"
		if g.secure {
			ours, baseline, config, scheme = secure, server{peer.process, peer.secure}, trust, "HTTPS"
		}
		c, err := compareServers(s, ours, baseline, config, g.connections, func([]byte) []byte { return requests[mathrand.IntN(objects)] }, 200)
		if err != nil {
			return err
		}
		c.printLine(fmt.Sprintf("%s, %d KB, %d connections", scheme, g.kib, g.connections), g.target)
	}
	for _, p := range []struct {
		name string
		server
	}{{"HTTPS", secure}, {"HTTP", plain}} {
		resident, err := p.resident()
		if err != nil {
			return err
		}
		fmt.Printf("  telapi media, %s: %.0f MiB resident, MEDIA_MEMORY_BYTES %d MiB\n", p.name, resident/(1<<20), memoryBytes>>20)
	}
	return nil
}

// mediaPuts compares uploads with nginx's dav module, which renames complete files
// like telapi but does not sync them. telapi is measured with and without sync.
func mediaPuts(at *site, s settings) error {
	const kib, connections = 24, 64
	var uploads atomic.Int64
	body := make([]byte, kib<<10)
	upload := func(buffer []byte) []byte { // always a new object, as in a cache
		head := fmt.Appendf(buffer[:0], "PUT /media/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", objectName(kib, int(uploads.Add(1))), len(body))
		return append(head, body...)
	}
	s.span, s.rounds = s.span/6, s.rounds*3 // short rounds, because disks are sometimes busy and uploads fill them
	fmt.Printf("PUTs of %d KB, %d connections; nginx with the dav module\n", kib, connections)
	for _, variant := range []struct {
		name, sync string
		target     float64
	}{{"telapi without sync", "false", 1}, {"telapi with sync", "true", 0}} {
		dir, err := os.MkdirTemp(at.dir, "media")
		if err != nil {
			return err
		}
		if _, err := createCertificate(dir); err != nil {
			return err
		}
		peer, err := startNginx(dir)
		if err != nil {
			return err
		}
		ours, err := at.startMedia(filepath.Join(dir, "plain"), "MEDIA_SYNC="+variant.sync)
		if err != nil {
			return err
		}
		c, err := compareServers(s, ours, server{peer.process, peer.plain}, nil, connections, upload, 201)
		ours.kill()
		peer.stop()
		if err != nil {
			return err
		}
		c.printLine(variant.name, variant.target)
	}
	return nil
}

// server is a running server and its address.
type server struct {
	*process
	addr string
}

// startMedia runs the media service with a root directory.
func (s *site) startMedia(root string, settings ...string) (server, error) {
	port, err := freePort()
	if err != nil {
		return server{}, err
	}
	cmd := exec.Command(s.binary, "media")
	cmd.Env = append(os.Environ(), "MEDIA_HOST=127.0.0.1", "MEDIA_PORT="+port, "MEDIA_ROOT="+root, "OTEL_ENABLED=false", "LOG_LEVEL=warn",
		"MEDIA_MEMORY_BYTES="+strconv.Itoa(memoryBytes))
	cmd.Env = append(cmd.Env, settings...)
	p, err := startServer(cmd)
	if err != nil {
		return server{}, err
	}
	addr := net.JoinHostPort("127.0.0.1", port)
	return server{p, addr}, awaitDial(addr)
}

// compareServers warms both servers up and measures them alternately. Every round
// uses new connections, because their random distribution over nginx's workers
// changes its throughput by a third.
func compareServers(s settings, ours, baseline server, secure *tls.Config, connections int, next func([]byte) []byte, status int) (comparison, error) {
	round := func(target server, span time.Duration) func() (result, error) {
		return func() (result, error) {
			c, err := connectAll(target.addr, secure, connections, target.pids())
			if err != nil {
				return result{}, err
			}
			defer c.close()
			return c.round(next, span, status)
		}
	}
	if _, err := interleave(1, round(ours, s.span/2), round(baseline, s.span/2)); err != nil {
		return comparison{}, err
	}
	return interleave(s.rounds, round(ours, s.span), round(baseline, s.span))
}

// printLine prints the ratios of one workload, then the absolute figures.
func (c comparison) printLine(workload string, target float64) {
	ms := func(r result) float64 { return float64(r.p99) / float64(time.Millisecond) }
	note := ""
	if target > 0 {
		note = fmt.Sprintf(" (target: at least %.2f)", target)
	}
	fmt.Printf("  %-32s requests/s %.2f%s, p99 %.2f, CPU time %.2f    (%.0f : %.0f requests/s, %.1f : %.1f ms, %.0f : %.0f µs each)\n",
		workload, c.ratio, note, ms(c.telapi)/ms(c.baseline), c.telapi.costs[0]/c.baseline.costs[0],
		c.telapi.perSecond, c.baseline.perSecond, ms(c.telapi), ms(c.baseline), c.telapi.costs[0], c.baseline.costs[0])
}

// objectName returns the path of a file.
func objectName(kib, i int) string { return fmt.Sprintf("%02x/%dk-%04d.alaw", i%256, kib, i) }

// createObjects writes the files for nginx and links them into the roots of the
// media service.
func createObjects(dir string) error {
	noise := make([]byte, 96<<10)
	_, _ = rand.Read(noise)
	roots := []string{"nginx/media", "plain", "secure"}
	for i := range 256 {
		for _, root := range roots {
			if err := os.MkdirAll(filepath.Join(dir, root, fmt.Sprintf("%02x", i)), 0o755); err != nil {
				return err
			}
		}
	}
	for i := range objects {
		for _, kib := range []int{24, 96} {
			file := filepath.Join(dir, roots[0], objectName(kib, i))
			if err := os.WriteFile(file, noise[:kib<<10], 0o644); err != nil {
				return err
			}
			for _, root := range roots[1:] {
				if err := os.Link(file, filepath.Join(dir, root, objectName(kib, i))); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// createCertificate writes an ECDSA certificate to dir and returns a client
// configuration that trusts it.
func createCertificate(dir string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(dir, "cert.pem"), certificate, 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1"}, nil
}
