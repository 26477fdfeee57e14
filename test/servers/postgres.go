package servers

import (
	"context"
	"crypto/rand"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	postgresUser     = "telapi"
	postgresPassword = "postgres-test-password"
)

// PostgresOptions say how a server differs from a plain one.
type PostgresOptions struct {
	// CA makes the server offer TLS with a certificate of it for Hosts. Plain
	// connections are accepted as well.
	CA    *CA
	Hosts []string
	// Stopped leaves the server to a later Start.
	Stopped bool
	// Clock sets the server's clock apart from the machine's, such as "+1h".
	Clock string
}

// Postgres is a PostgreSQL server with a data folder of its own.
type Postgres struct {
	Port int

	binary   string
	dir      string // data and certificates
	settings []string
	clock    string
	as       *syscall.Credential // nil: the user of the test itself
	proc     *process            // nil: never started
}

// StartPostgres starts a server that is stopped and removed when the test ends.
func StartPostgres(t testing.TB, opts PostgresOptions) *Postgres {
	t.Helper()
	p := newPostgres(t, opts)
	t.Cleanup(p.remove)
	if !opts.Stopped {
		p.Start(t)
	}
	return p
}

// sharedPostgres is the one server of a test binary.
var sharedPostgres struct {
	sync.Mutex
	server *Postgres
}

// SharedPostgres returns a server that all tests of the binary use, each with a
// database of its own. The package's TestMain must end through Main, which
// stops it.
func SharedPostgres(t testing.TB) *Postgres {
	t.Helper()
	sharedPostgres.Lock()
	defer sharedPostgres.Unlock()
	if sharedPostgres.server == nil {
		p := newPostgres(t, PostgresOptions{})
		atEnd(p.remove)
		p.Start(t)
		sharedPostgres.server = p
	}
	return sharedPostgres.server
}

func newPostgres(t testing.TB, opts PostgresOptions) *Postgres {
	t.Helper()
	initdb := need(t, "initdb", "postgresql", "/usr/lib/postgresql/*/bin")
	if resolved, err := filepath.EvalSymlinks(initdb); err == nil {
		initdb = resolved // postgres stands beside it, and may be nowhere else
	}
	// Not t.TempDir: its parents keep other users out.
	dir, err := os.MkdirTemp("", "telapi-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	p := &Postgres{
		Port:   FreePort(t),
		binary: filepath.Join(filepath.Dir(initdb), "postgres"),
		dir:    dir,
		clock:  opts.Clock,
		as:     unprivileged(t),
		settings: []string{
			"listen_addresses=127.0.0.1", "unix_socket_directories=",
			// Safe as long as the machine itself does not crash. Commits stay
			// synchronous, so that Crash loses none.
			"fsync=off", "full_page_writes=off",
		},
	}
	if opts.CA != nil {
		_, cert, key := opts.CA.Files(t, dir, opts.Hosts...)
		p.settings = append(p.settings, "ssl=on", "ssl_cert_file="+cert, "ssl_key_file="+key)
	}
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte(postgresPassword), 0o600); err != nil {
		t.Fatal(err)
	}
	p.handOver(t)
	command := exec.Command(initdb, "--pgdata", p.data(), "--username", postgresUser, "--pwfile", password,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync")
	command.Dir = dir
	command.SysProcAttr = &syscall.SysProcAttr{Credential: p.as}
	if output, err := command.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		t.Fatalf("initdb: %v\n%s", err, output)
	}
	return p
}

// unprivileged is whom the server runs as, because PostgreSQL refuses root.
func unprivileged(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(account.Uid, 10, 32)
		gid, _ := strconv.ParseUint(account.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Fatal("PostgreSQL does not run as root, and there is no other user to run it as")
	return nil
}

// handOver gives the folder and what is in it to the server's user.
func (p *Postgres) handOver(t testing.TB) {
	t.Helper()
	if p.as == nil {
		return
	}
	err := filepath.WalkDir(p.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, int(p.as.Uid), int(p.as.Gid))
	})
	if err != nil {
		t.Fatalf("hand the folder to the server's user: %v", err)
	}
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }

// URL is the address of the first database, under which everything is allowed.
func (p *Postgres) URL() string { return p.url("postgres") }

func (p *Postgres) url(database string) string {
	u := url.URL{
		Scheme: "postgres",
		User:   url.UserPassword(postgresUser, postgresPassword),
		Host:   net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Port)),
		Path:   "/" + database,
	}
	return u.String()
}

// NewDatabase creates an empty database and returns its URL.
func (p *Postgres) NewDatabase(t testing.TB) string {
	t.Helper()
	name := "test_" + strings.ToLower(rand.Text())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		t.Fatalf("connect to PostgreSQL: %v", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create a database: %v", err)
	}
	return p.url(name)
}

// Start starts the server, again where it was stopped, and waits until it
// answers. Port and data stay the same.
func (p *Postgres) Start(t testing.TB) {
	t.Helper()
	arguments := []string{"-D", p.data(), "-p", strconv.Itoa(p.Port)}
	for _, s := range p.settings {
		arguments = append(arguments, "-c", s)
	}
	command := exec.Command(p.binary, arguments...)
	if p.clock != "" {
		command.Path, command.Args = need(t, "faketime", "faketime"), append([]string{"faketime", "-f", p.clock}, command.Args...)
	}
	command.Dir = p.dir
	// A group of its own keeps Ctrl-C for the test.
	command.SysProcAttr = &syscall.SysProcAttr{Credential: p.as, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	p.proc = launch(t, command)
	p.proc.await(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err := pgx.Connect(ctx, p.URL())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

// Stop shuts the server down in order: clients are told and disconnected.
func (p *Postgres) Stop() { p.end(syscall.SIGINT) }

// Crash ends the server at once, so that its next start has to recover.
func (p *Postgres) Crash() { p.end(syscall.SIGQUIT) }

func (p *Postgres) end(signal syscall.Signal) {
	if p.proc != nil {
		_ = p.proc.stop(signal) // one that does not end is killed
	}
}

func (p *Postgres) remove() {
	p.Crash()
	_ = os.RemoveAll(p.dir)
}
