package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/internal/background"
	"telapi/internal/config"
	"telapi/internal/filelock"
	"telapi/internal/kv"
	"telapi/internal/redact"
)

const (
	// engineLock is locked while a server runs an engine.
	engineLock = "embedded-kv.lock"

	// defaultMaxBytes is also the default of EMBEDDED_KV_MAX_BYTES.
	defaultMaxBytes = 256 << 20

	// engineTick is the precision with which keys expire.
	engineTick = 100 * time.Millisecond
)

// ErrNoServer is returned if no server runs an embedded engine on a data directory.
var ErrNoServer = errors.New("no server is running on this data directory")

// Embedded is a key-value engine inside the process. Other processes of the same
// machine can connect to it.
type Embedded struct {
	engine    *engine
	snapshots *snapshots
	addr      string
	password  redact.Secret
	record    string // path of the connection record
	lock      *os.File
	closing   sync.Once
	jobs      *background.Group
}

// EmbeddedOptions configure an embedded engine.
type EmbeddedOptions struct {
	DataDir  string
	MaxBytes int64 // of memory for its content; 0: defaultMaxBytes
	KeepText bool  // texts of browser actions are saved in DataDir
}

// StartEmbedded starts an engine with the content that the last one on DataDir has
// saved there, and records in DataDir how to connect to it.
func StartEmbedded(o EmbeddedOptions, log *slog.Logger) (_ *Embedded, err error) {
	if err := os.MkdirAll(o.DataDir, 0o700); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(o.DataDir, engineLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	defer func() {
		if err != nil {
			filelock.Close(lock)
		}
	}()
	if filelock.TryLock(lock) != nil {
		return nil, fmt.Errorf("another server is running on %s: stop it, use another DATA_DIR, or set REDIS_URL so that several servers share one store", o.DataDir)
	}
	password := rand.Text()
	engine, err := startEngine(password, cmp.Or(o.MaxBytes, defaultMaxBytes))
	if err != nil {
		return nil, err
	}
	e := &Embedded{
		engine:    engine,
		snapshots: &snapshots{engine: engine, path: filepath.Join(o.DataDir, snapshotFile), log: log, privacy: privacy{o.KeepText}},
		addr:      engine.Addr(),
		password:  redact.Secret(password),
		record:    filepath.Join(o.DataDir, kv.EmbeddedFile),
		lock:      lock,
		jobs:      background.NewGroup(),
	}
	if err = e.snapshots.load(); err != nil {
		err = fmt.Errorf("write a snapshot to the data directory: %w", err)
	} else if err = e.writeRecord(); err != nil { // clients can connect now
		err = fmt.Errorf("write the connection record: %w", err)
	}
	if err != nil {
		engine.Close()
		return nil, err
	}
	_ = e.jobs.Go(context.Background(), e.tick) // the group is open
	_ = e.jobs.Go(context.Background(), e.saveSnapshots)
	log.Warn("using the embedded key-value store: for one machine and for development; a crash can lose its last seconds",
		"address", e.addr, "record", e.record, "snapshot", e.snapshots.path)
	return e, nil
}

// writeRecord writes the connection record. Readers see the whole record or none.
func (e *Embedded) writeRecord() error {
	u := url.URL{Scheme: "redis", User: url.UserPassword("", e.password.Reveal()), Host: e.addr}
	content, err := json.Marshal(kv.EmbeddedRecord{URL: u.String(), PID: os.Getpid()})
	if err != nil {
		return err
	}
	return replaceFile(e.record, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// tick counts the engine's time until Close.
func (e *Embedded) tick(closing context.Context) {
	for background.Sleep(closing, engineTick) == nil {
		e.engine.tick()
	}
}

// saveSnapshots saves the content regularly until Close.
func (e *Embedded) saveSnapshots(closing context.Context) {
	for wait := snapshotInterval; background.Sleep(closing, wait) == nil; {
		wait = max(snapshotInterval, lockedFactor*e.snapshots.save(running))
	}
}

// Options returns the options with which Open connects to the engine.
func (e *Embedded) Options(log *slog.Logger) Options {
	return Options{RedisOptions: config.RedisOptions{Addrs: []string{e.addr}, Password: e.password, Embedded: true}, Logger: log}
}

// Close stops the engine and saves its content.
func (e *Embedded) Close() {
	e.closing.Do(func() {
		_ = os.Remove(e.record)
		e.jobs.Close()
		e.engine.Close() // waits for running commands
		e.snapshots.save(stopped)
		filelock.Close(e.lock)
	})
}

// Join returns the options for the embedded engine that a server runs on the same
// data directory. The error is ErrNoServer if there is no record of one, or a
// crashed server left it behind. A server that runs but does not answer in time is
// not an error here: operations on the store report it.
func Join(dataDir string) (Options, error) {
	found, record, err := kv.FindEmbedded(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return Options{}, fmt.Errorf("%w: %w", ErrNoServer, err)
	}
	if err != nil {
		return Options{}, err
	}
	opts := Options{RedisOptions: found}
	client, err := rueidis.NewClient(opts.client())
	if client != nil {
		client.Close()
	}
	var network net.Error
	hangs := errors.As(err, &network) && network.Timeout() && !errors.Is(syscall.Kill(record.PID, 0), syscall.ESRCH)
	if err != nil && !hangs {
		return Options{}, fmt.Errorf("%w: %s was left behind by process %d, which does not answer", ErrNoServer, filepath.Join(dataDir, kv.EmbeddedFile), record.PID)
	}
	return opts, nil
}
