package testkit

import (
	"context"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

const (
	postgresUser     = "telapi"
	postgresPassword = "postgres-test-password"
)

// PostgresOptions are the options of StartPostgres.
type PostgresOptions struct {
	// CA enables TLS with a certificate for Hosts. The server also accepts plain
	// connections.
	CA    *CA
	Hosts []string
	// Stopped creates the server without starting it.
	Stopped bool
	// Clock is an offset of the server's clock, such as "+1h".
	Clock string
}

// Postgres is a PostgreSQL server.
type Postgres struct {
	Port int

	binary   string // empty: a shared server
	dir      string // data and certificates
	settings []string
	clock    string
	account  *syscall.Credential // nil: the current user
	proc     *process            // nil: never started
}

// StartPostgres starts a server. It is stopped and deleted when the test ends.
func StartPostgres(t testing.TB, opts PostgresOptions) *Postgres {
	t.Helper()
	p := newPostgres(t, opts)
	t.Cleanup(p.remove)
	if !opts.Stopped {
		p.Start(t)
	}
	return p
}

func newPostgres(t testing.TB, opts PostgresOptions) *Postgres {
	t.Helper()
	initdb := need(t, "initdb", "postgresql", "/usr/lib/postgresql/*/bin")
	if resolved, err := filepath.EvalSymlinks(initdb); err == nil {
		initdb = resolved // postgres is in the same directory
	}
	// Other users cannot access t.TempDir.
	dir, err := os.MkdirTemp("", "telapi-postgres-")
	Must(t, err)
	p := &Postgres{
		Port:    FreePort(t),
		binary:  filepath.Join(filepath.Dir(initdb), "postgres"),
		dir:     dir,
		clock:   opts.Clock,
		account: unprivileged(t),
		settings: []string{
			"listen_addresses=127.0.0.1", "unix_socket_directories=",
			// Crash loses no commit, because commits are still synchronous. Only a
			// crash of the machine would.
			"fsync=off", "full_page_writes=off",
			"max_connections=500", // for the tests of all packages
		},
	}
	if opts.CA != nil {
		_, cert, key := opts.CA.Files(t, dir, opts.Hosts...)
		p.settings = append(p.settings, "ssl=on", "ssl_cert_file="+cert, "ssl_key_file="+key)
	}
	password := filepath.Join(dir, "password")
	Must(t, os.WriteFile(password, []byte(postgresPassword), 0o600))
	p.chown(t)
	command := exec.Command(initdb, "--pgdata", p.data(), "--username", postgresUser, "--pwfile", password,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync")
	command.Dir = dir
	command.SysProcAttr = &syscall.SysProcAttr{Credential: p.account}
	if output, err := command.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		t.Fatalf("initdb: %v\n%s", err, output)
	}
	return p
}

// unprivileged returns the user of the server. PostgreSQL refuses to run as root.
func unprivileged(t testing.TB) *syscall.Credential {
	t.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "daemon"} {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(account.Uid, 10, 32)
		gid, _ := strconv.ParseUint(account.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Fatal("PostgreSQL refuses to run as root, and neither user postgres nor daemon exists")
	return nil
}

// chown makes the server's user the owner of the directory.
func (p *Postgres) chown(t testing.TB) {
	t.Helper()
	if p.account == nil {
		return
	}
	err := filepath.WalkDir(p.dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, int(p.account.Uid), int(p.account.Gid))
	})
	Must(t, err)
}

func (p *Postgres) data() string { return filepath.Join(p.dir, "data") }

// URL returns the URL of the database postgres, with superuser credentials.
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

// Start starts or restarts the server and waits until it accepts connections.
// Port and data stay the same.
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
	// In a separate process group, Ctrl-C does not reach the server.
	command.SysProcAttr = &syscall.SysProcAttr{Credential: p.account, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	p.proc = launch(t, command)
	p.proc.await(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), Timeout)
		defer cancel()
		conn, err := pgx.Connect(ctx, p.URL())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

// Stop shuts the server down cleanly and disconnects its clients.
func (p *Postgres) Stop() { p.end(syscall.SIGINT) }

// Crash terminates the server immediately. The next start runs crash recovery.
func (p *Postgres) Crash() { p.end(syscall.SIGQUIT) }

func (p *Postgres) end(signal syscall.Signal) {
	if p.proc != nil {
		_ = p.proc.stop(signal) // kills the server if it does not exit
	}
}

func (p *Postgres) remove() {
	p.Crash()
	_ = os.RemoveAll(p.dir)
}
