package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"
)

// site is the environment of the benchmarks: a directory, the binary and stores.
type site struct {
	dir, binary  string
	kv, database string // for output
	redisURL     string // empty: the embedded store; several hosts for a cluster
	postgresURL  string // empty: SQLite
	stops        []func()

	redisProcesses []*process
	postgres       *os.Process // nil: SQLite
}

// openSite builds the service and starts Redis and PostgreSQL if they are
// installed.
func openSite() (s *site, err error) {
	s = &site{kv: "embedded key-value store", database: "SQLite"}
	if s.dir, err = os.MkdirTemp("", "telapi-bench"); err != nil {
		return nil, fmt.Errorf("create directory: %w", err)
	}
	s.stops = append(s.stops, func() { _ = os.RemoveAll(s.dir) })
	s.binary = filepath.Join(s.dir, "telapi")
	if out, err := exec.Command("go", "build", "-o", s.binary, "./cmd/telapi").CombinedOutput(); err != nil {
		s.close()
		return nil, fmt.Errorf("build: %w\n%s", err, out)
	}
	if _, err := exec.LookPath("redis-server"); err == nil {
		if err := s.startRedis(); err != nil {
			s.close()
			return nil, err
		}
	}
	if initdb, err := exec.LookPath("initdb"); err == nil {
		if err := s.startPostgres(initdb); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *site) close() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
}

// startRedis runs a Redis without persistence.
func (s *site) startRedis() error {
	port, err := freePort()
	if err != nil {
		return err
	}
	p, err := start(exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", s.dir))
	if err != nil {
		return err
	}
	s.kv, s.redisURL, s.redisProcesses = "Redis", "redis://127.0.0.1:"+port, []*process{p}
	s.stops = append(s.stops, p.stop)
	return awaitDial("127.0.0.1:" + port)
}

// redis returns a client with default options.
func (s *site) redis() (rueidis.Client, error) {
	if s.redisURL == "" {
		return nil, fmt.Errorf("redis-server is not installed")
	}
	return plainRedis(s.redisURL)
}

func plainRedis(address string) (rueidis.Client, error) {
	opts := storeOptions(address)
	opts.DisableCache = true
	return rueidis.NewClient(opts)
}

// startPostgres runs PostgreSQL without fsync, so that results do not depend on
// the disk.
func (s *site) startPostgres(initdb string) error {
	if resolved, err := filepath.EvalSymlinks(initdb); err == nil {
		initdb = resolved // postgres is in the same directory
	}
	dir, err := os.MkdirTemp("", "telapi-bench-postgres")
	if err != nil {
		return err
	}
	s.stops = append(s.stops, func() { _ = os.RemoveAll(dir) })
	account, err := unprivileged(dir)
	if err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	create := exec.Command(initdb, "--pgdata", data, "--username", "bench", "--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync")
	create.Dir, create.SysProcAttr = dir, &syscall.SysProcAttr{Credential: account}
	if out, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	server := exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-p", port,
		"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "full_page_writes=off")
	server.Dir, server.SysProcAttr = dir, &syscall.SysProcAttr{Credential: account, Pdeathsig: syscall.SIGQUIT}
	if err := server.Start(); err != nil {
		return err
	}
	s.postgres = server.Process
	s.stops = append(s.stops, func() { _ = server.Process.Signal(syscall.SIGQUIT); _ = server.Wait() })
	s.database, s.postgresURL = "PostgreSQL (fsync off)", "postgres://bench@127.0.0.1:"+port+"/postgres?sslmode=disable"
	return awaitDial("127.0.0.1:" + port)
}

// unprivileged makes user postgres the owner of dir if the current user is root,
// because PostgreSQL refuses to run as root.
func unprivileged(dir string) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, _ := strconv.Atoi(account.Uid)
	gid, _ := strconv.Atoi(account.Gid)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, os.Chown(dir, uid, gid)
}

// newDatabase waits for the server, creates a database and returns its URL.
func (s *site) newDatabase(name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, s.postgresURL)
		if err == nil {
			_, err = conn.Exec(ctx, "CREATE DATABASE "+name)
			_ = conn.Close(ctx)
			u, _ := url.Parse(s.postgresURL)
			u.Path = "/" + name
			return u.String(), err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return "", fmt.Errorf("connect to PostgreSQL: %w", err)
		}
	}
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
