package main

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"telapi/test/testkit"
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
func mediaGets(at *site, s settings) {
	raiseFileLimit(16_000)
	dir, trust := newMediaDir()
	createObjects(dir)
	nginxPlain, nginxSecure := startNginx(dir)
	defer nginxPlain.kill()
	plain := at.startMedia(filepath.Join(dir, "plain"))
	defer plain.kill()
	secure := at.startMedia(filepath.Join(dir, "secure"), "MEDIA_TLS_CERT_FILE="+dir+"/cert.pem", "MEDIA_TLS_KEY_FILE="+dir+"/key.pem")
	defer secure.kill()

	fmt.Printf("random GETs of %d files; nginx with sendfile, open_file_cache and no log; TLS 1.3 with AES-128-GCM\n", objects)
	for _, g := range gets {
		requests := make([][]byte, objects)
		for i := range requests {
			requests[i] = fmt.Appendf(nil, "GET /media/%s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n", objectName(g.kib, i))
		}
		ours, baseline, config, scheme := plain, nginxPlain, (*tls.Config)(nil), "HTTP"
		if g.secure {
			ours, baseline, config, scheme = secure, nginxSecure, trust, "HTTPS"
		}
		c := at.compareServers(s, ours, baseline, config, g.connections, func() []byte { return requests[mathrand.IntN(objects)] }, 200)
		c.printLine(fmt.Sprintf("%s, %d KB, %d connections", scheme, g.kib, g.connections), g.target)
	}
	for name, p := range map[string]server{"HTTPS": secure, "HTTP": plain} {
		fmt.Printf("  telapi media, %s: %.0f MiB resident, MEDIA_MEMORY_BYTES %d MiB\n", name, p.resident()/(1<<20), memoryBytes>>20)
	}
}

// mediaPuts compares uploads with nginx's dav module, which renames complete files
// like telapi but does not sync them. telapi is measured with and without sync.
func mediaPuts(at *site, s settings) {
	const kib, connections = 24, 64
	var uploads atomic.Int64
	body := make([]byte, kib<<10)
	upload := func() []byte { // always a new object, as in a cache
		head := fmt.Appendf(nil, "PUT /media/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", objectName(kib, int(uploads.Add(1))), len(body))
		return append(head, body...)
	}
	s.span, s.rounds = s.span/6, s.rounds*3 // short rounds, because disks are sometimes busy and uploads fill them
	fmt.Printf("PUTs of %d KB, %d connections; nginx with the dav module\n", kib, connections)
	for _, variant := range []struct {
		name, sync string
		target     float64
	}{{"telapi without sync", "false", 1}, {"telapi with sync", "true", 0}} {
		dir, _ := newMediaDir()
		peer, _ := startNginx(dir)
		ours := at.startMedia(filepath.Join(dir, "plain"), "MEDIA_SYNC="+variant.sync)
		c := at.compareServers(s, ours, peer, nil, connections, upload, 201)
		ours.kill()
		peer.kill()
		c.printLine(variant.name, variant.target)
	}
}

// server is a running server and its address.
type server struct {
	*process
	addr string
}

// startServer starts a server that does not print its address and waits until it accepts
// connections.
func startServer(cmd *exec.Cmd, port int) server {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // lets nginx stop its workers
	cmd.Stderr = os.Stderr
	check(cmd.Start())
	s := server{&process{cmd: cmd}, address(port)}
	await(cmd.Path+" accepts connections", func() bool {
		conn, err := net.Dial("tcp", s.addr)
		return err == nil && conn.Close() == nil
	})
	return s
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// kill stops a server and its children.
func (s server) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	_ = s.cmd.Wait()
}

// startMedia runs the media service with a root directory.
func (s *site) startMedia(root string, settings ...string) server {
	port := freePort()
	cmd := exec.Command(s.binary, "media")
	cmd.Env = append(os.Environ(), "MEDIA_HOST=127.0.0.1", fmt.Sprintf("MEDIA_PORT=%d", port), "MEDIA_ROOT="+root, "OTEL_ENABLED=false", "LOG_LEVEL=warn",
		fmt.Sprintf("MEDIA_MEMORY_BYTES=%d", memoryBytes))
	cmd.Env = append(cmd.Env, settings...)
	return startServer(cmd, port)
}

// compareServers warms both servers up and measures them alternately. Every round
// uses new connections, because their random distribution over nginx's workers
// changes its throughput by a third.
func (s *site) compareServers(opts settings, ours, baseline server, secure *tls.Config, connections int, next source, status int) comparison {
	measure := func(rounds int, span time.Duration) comparison {
		round := func(target server) func() result {
			return func() result {
				conns := connectAll(secure, connections, target.addr)
				r := s.measureCPU([]*process{target.process}, func() result { return load(conns, status, during(span, connections, next)) })
				if r.errors > 0 {
					check(fmt.Errorf("%d of the requests to %s failed", r.errors, target.addr))
				}
				return r
			}
		}
		return interleave(rounds, round(ours), round(baseline))
	}
	measure(1, opts.span/2)
	return measure(opts.rounds, opts.span)
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

// newMediaDir returns a directory with a certificate, and a client configuration that
// trusts it.
func newMediaDir() (dir string, trust *tls.Config) {
	dir = program.TempDir()
	ca := testkit.NewCA(program)
	ca.Files(program, dir, "127.0.0.1")
	return dir, &tls.Config{RootCAs: ca.Roots(), MinVersion: tls.VersionTLS13, ServerName: "127.0.0.1"}
}

// createObjects writes the files for nginx and links them into the roots of the
// media service.
func createObjects(dir string) {
	noise := make([]byte, 96<<10)
	_, _ = rand.Read(noise)
	roots := []string{"nginx/media", "plain", "secure"}
	for i := range 256 {
		for _, root := range roots {
			check(os.MkdirAll(filepath.Join(dir, root, fmt.Sprintf("%02x", i)), 0o755))
		}
	}
	for i := range objects {
		for _, kib := range []int{24, 96} {
			file := filepath.Join(dir, roots[0], objectName(kib, i))
			check(os.WriteFile(file, noise[:kib<<10], 0o644))
			for _, root := range roots[1:] {
				check(os.Link(file, filepath.Join(dir, root, objectName(kib, i))))
			}
		}
	}
}

// nginxConf configures nginx to serve files fast: sendfile, open_file_cache, no
// log, one worker per CPU. The dav module handles PUT: it writes a temporary file
// and renames it without sync.
const nginxConf = `
daemon off;
worker_processes auto;
worker_rlimit_nofile 65536;
user %[1]s;
pid %[2]s/nginx.pid;
error_log %[2]s/error.log crit;
events { worker_connections 8192; }
http {
	access_log off;
	server_tokens off;
	sendfile on;
	tcp_nopush on;
	open_file_cache max=10000 inactive=10m;
	open_file_cache_valid 10m;
	keepalive_timeout 10m;
	keepalive_requests 100000000;
	default_type application/octet-stream;
	client_body_temp_path %[2]s/body;
	client_max_body_size 32m;
	client_body_buffer_size 64k;
	proxy_temp_path %[2]s/proxy;
	fastcgi_temp_path %[2]s/fastcgi;
	uwsgi_temp_path %[2]s/uwsgi;
	scgi_temp_path %[2]s/scgi;
	server {
		listen 127.0.0.1:%[3]d backlog=4096;
		listen 127.0.0.1:%[4]d ssl backlog=4096;
		ssl_certificate %[2]s/cert.pem;
		ssl_certificate_key %[2]s/key.pem;
		ssl_protocols TLSv1.3;
		ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;
		root %[2]s/nginx;
		dav_methods PUT DELETE;
		create_full_put_path on;
		add_header Cache-Control "private, max-age=31536000, immutable";
	}
}
`

// startNginx runs Debian's nginx over dir/nginx with the certificate in dir. The process
// serves both addresses.
func startNginx(dir string) (plain, secure server) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx" // not in the PATH of normal users
	}
	ports := [2]int{freePort(), freePort()}
	account := must(user.Current())
	conf := filepath.Join(dir, "nginx.conf")
	check(os.WriteFile(conf, fmt.Appendf(nil, nginxConf, account.Username, dir, ports[0], ports[1]), 0o600))
	plain = startServer(exec.Command(program, "-p", dir, "-c", conf, "-e", filepath.Join(dir, "error.log")), ports[0])
	return plain, server{plain.process, address(ports[1])}
}

func freePort() int { return testkit.FreePort(program) }
