package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

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
		listen 127.0.0.1:%[3]s backlog=4096;
		listen 127.0.0.1:%[4]s ssl backlog=4096;
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

// nginx is a running nginx and its addresses.
type nginx struct {
	*process
	plain, secure string
}

// startNginx runs Debian's nginx over dir/nginx with the certificate in dir.
func startNginx(dir string) (*nginx, error) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx" // not in the PATH of normal users
	}
	plain, err := freePort()
	if err != nil {
		return nil, err
	}
	secure, err := freePort()
	if err != nil {
		return nil, err
	}
	account, err := user.Current()
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, account.Username, dir, plain, secure), 0o600); err != nil {
		return nil, err
	}
	p, err := startServer(exec.Command(program, "-p", dir, "-c", conf, "-e", filepath.Join(dir, "error.log")))
	if err != nil {
		return nil, fmt.Errorf("%w (scripts/install-servers.sh installs it: Debian package nginx-light)", err)
	}
	n := &nginx{p, net.JoinHostPort("127.0.0.1", plain), net.JoinHostPort("127.0.0.1", secure)}
	return n, awaitDial(n.secure)
}

// startServer starts a server that does not print its address.
func startServer(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // lets nginx stop its workers
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return &process{cmd: cmd}, nil
}

// awaitDial waits until a server accepts connections.
func awaitDial(addr string) error {
	for deadline := time.Now().Add(timeout); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no server on %s: %w", addr, err)
		}
	}
}

// pids returns the process IDs of a process and its children.
func (p *process) pids() []int {
	pid := p.cmd.Process.Pid
	list := []int{pid}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(children)) {
		if n, err := strconv.Atoi(child); err == nil {
			list = append(list, n)
		}
	}
	return list
}
