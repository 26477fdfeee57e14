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

// objects is how many files there are of each size, and memory what the service
// may hold of them: all.
const (
	objects     = 2000
	memoryBytes = 256 << 20
)

// gets are the loads of GETs, and what is wanted of each as a ratio to nginx.
var gets = []struct {
	kib, connections int
	secure           bool
	wanted           float64
}{
	{24, 64, true, 1}, {96, 64, true, 1}, {24, 1000, true, 1}, {96, 1000, true, 1},
	{24, 64, false, 1}, {96, 64, false, 1}, {24, 1000, false, 0.9}, {96, 1000, false, 0.9},
}

// mediaGets measures reads of the media service against nginx over the same
// files. One that fails, at any number of connections, fails the benchmark.
func mediaGets(at *site, s settings) error {
	if err := allowFiles(16_000); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(at.dir, "media")
	if err != nil {
		return err
	}
	trust, err := certify(dir)
	if err != nil {
		return err
	}
	if err := fill(dir); err != nil {
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

	fmt.Printf("GETs of %d files at random, against nginx (sendfile, open files cached, no log); TLS 1.3 with AES-128-GCM on both\n", objects)
	for _, g := range gets {
		requests := make([][]byte, objects)
		for i := range requests {
			requests[i] = fmt.Appendf(nil, "GET /media/%s HTTP/1.1\r\nHost: media\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", object(g.kib, i))
		}
		ours, theirs, config, scheme := plain, listening{peer.process, peer.plain}, (*tls.Config)(nil), "HTTP"
		if g.secure {
			ours, theirs, config, scheme = secure, listening{peer.process, peer.secure}, trust, "HTTPS"
		}
		d, err := race(s, ours, theirs, config, g.connections, func([]byte) []byte { return requests[mathrand.IntN(objects)] }, 200)
		if err != nil {
			return err
		}
		d.printBeside(fmt.Sprintf("%s, %d KB, %d connections", scheme, g.kib, g.connections), g.wanted)
	}
	for _, p := range []struct {
		name string
		listening
	}{{"HTTPS", secure}, {"HTTP", plain}} {
		resident, err := p.resident()
		if err != nil {
			return err
		}
		fmt.Printf("  memory of the service over %s: %.0f MiB resident, with %d MiB of objects allowed\n", p.name, resident/(1<<20), memoryBytes>>20)
	}
	return nil
}

// mediaPuts measures uploads against nginx's dav module. That renames a complete
// file into place as the service does, but leaves it to the system when it
// reaches the disk: so the service is measured doing the same, and then as it
// does by default.
func mediaPuts(at *site, s settings) error {
	const kib, connections = 24, 64
	var made atomic.Int64
	body := make([]byte, kib<<10)
	upload := func(buffer []byte) []byte { // a new object each time: what a cache does nearly always
		head := fmt.Appendf(buffer[:0], "PUT /media/%s HTTP/1.1\r\nHost: media\r\nContent-Length: %d\r\n\r\n", object(kib, int(made.Add(1))), len(body))
		return append(head, body...)
	}
	s.span, s.rounds = s.span/6, s.rounds*3 // the disk is busy now and then; half of the time, since they fill it
	fmt.Printf("PUTs of %d KB over %d connections, against nginx's dav module\n", kib, connections)
	for _, as := range []struct {
		name, sync string
		wanted     float64
	}{{"neither syncs", "false", 1}, {"only telapi syncs", "true", 0}} {
		dir, err := os.MkdirTemp(at.dir, "media")
		if err != nil {
			return err
		}
		if _, err := certify(dir); err != nil {
			return err
		}
		peer, err := startNginx(dir)
		if err != nil {
			return err
		}
		ours, err := at.startMedia(filepath.Join(dir, "plain"), "MEDIA_SYNC="+as.sync)
		if err != nil {
			return err
		}
		d, err := race(s, ours, listening{peer.process, peer.plain}, nil, connections, upload, 201)
		ours.kill()
		peer.stop()
		if err != nil {
			return err
		}
		d.printBeside(as.name, as.wanted)
	}
	return nil
}

// listening is a server and where it listens.
type listening struct {
	*process
	addr string
}

// startMedia runs the media service over a folder.
func (s *site) startMedia(root string, settings ...string) (listening, error) {
	port, err := freePort()
	if err != nil {
		return listening{}, err
	}
	cmd := exec.Command(s.binary, "media")
	cmd.Env = append(os.Environ(), "MEDIA_HOST=127.0.0.1", "MEDIA_PORT="+port, "MEDIA_ROOT="+root, "OTEL_ENABLED=false", "LOG_LEVEL=warn",
		"MEDIA_MEMORY_BYTES="+strconv.Itoa(memoryBytes))
	cmd.Env = append(cmd.Env, settings...)
	p, err := startSilent(cmd)
	if err != nil {
		return listening{}, err
	}
	addr := net.JoinHostPort("127.0.0.1", port)
	return listening{p, addr}, awaitDial(addr)
}

// race warms both servers up and measures them in turns, each time over new
// connections: which of nginx's workers takes which is chance, and decides about a
// third of what it can do.
func race(s settings, ours, theirs listening, secure *tls.Config, connections int, next func([]byte) []byte, status int) (duel, error) {
	run := func(l listening, span time.Duration) func() (result, error) {
		return func() (result, error) {
			f, err := board(l.addr, secure, connections, l.family())
			if err != nil {
				return result{}, err
			}
			defer f.leave()
			return f.round(next, span, status)
		}
	}
	if _, err := interleave(1, run(ours, s.span/2), run(theirs, s.span/2)); err != nil {
		return duel{}, err
	}
	return interleave(s.rounds, run(ours, s.span), run(theirs, s.span))
}

// printBeside shows one load on a line: ratios, and what they are of.
func (d duel) printBeside(load string, wanted float64) {
	ms := func(r result) float64 { return float64(r.p99) / float64(time.Millisecond) }
	aim := ""
	if wanted > 0 {
		aim = fmt.Sprintf(" (at least %.2f wanted)", wanted)
	}
	fmt.Printf("  %-32s requests/s %.2f%s, p99 %.2f, processor time %.2f    (%.0f : %.0f requests/s, %.1f : %.1f ms, %.0f : %.0f µs each)\n",
		load, d.ratio, aim, ms(d.ours)/ms(d.bare), d.ours.costs[0]/d.bare.costs[0],
		d.ours.perSecond, d.bare.perSecond, ms(d.ours), ms(d.bare), d.ours.costs[0], d.bare.costs[0])
}

// object names a file.
func object(kib, i int) string { return fmt.Sprintf("%02x/%dk-%04d.alaw", i%256, kib, i) }

// fill writes the files for nginx, and links them into the folders of the
// service.
func fill(dir string) error {
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
			file := filepath.Join(dir, roots[0], object(kib, i))
			if err := os.WriteFile(file, noise[:kib<<10], 0o644); err != nil {
				return err
			}
			for _, root := range roots[1:] {
				if err := os.Link(file, filepath.Join(dir, root, object(kib, i))); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// certify writes an ECDSA certificate to dir and returns the configuration of a
// client that trusts it.
func certify(dir string) (*tls.Config, error) {
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
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(dir, "cert.pem"), certificate, 0o600); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "key.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1"}, nil
}
