package redisstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-json-experiment/json"
	"github.com/redis/rueidis"

	"telapi/internal/config"
	"telapi/internal/redact"
	"telapi/internal/redisconn"
)

const (
	// engineLock is locked while a server runs an engine. It is never removed:
	// otherwise two servers could lock different files of that name.
	engineLock = "embedded-kv.lock"

	// engineTick is the precision with which keys expire.
	engineTick = 100 * time.Millisecond
)

// ErrNoServer is returned if no server runs an embedded engine on a data directory.
var ErrNoServer = errors.New("no server is running on this data directory")

// Embedded is a key-value engine inside the process. Other processes of the same
// machine can connect to it.
type Embedded struct {
	engine *miniredis.Miniredis
	addr   string
	pass   redact.Secret
	file   string
	lock   *os.File
	close  sync.Once
	done   chan struct{}
	ticker sync.WaitGroup
}

// StartEmbedded starts an engine and records in dataDir how to connect to it.
func StartEmbedded(dataDir string, log *slog.Logger) (*Embedded, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dataDir, engineLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("another server is running on %s: stop it, use another DATA_DIR, or set REDIS_URL so that several servers share one store", dataDir)
	}
	engine := miniredis.NewMiniRedis()
	password := rand.Text()
	engine.RequireAuth(password)
	if err := engine.StartAddr("127.0.0.1:0"); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	e := &Embedded{
		engine: engine,
		addr:   engine.Addr(),
		pass:   redact.Secret(password),
		file:   filepath.Join(dataDir, redisconn.EmbeddedFile),
		lock:   lock,
		done:   make(chan struct{}),
	}
	if err := e.record(); err != nil {
		engine.Close()
		_ = lock.Close()
		return nil, fmt.Errorf("write the connection record: %w", err)
	}
	e.ticker.Go(e.tick)
	log.Warn("using the embedded key-value store: for one machine and for development; its data does not survive a restart",
		"address", e.addr, "record", e.file)
	return e, nil
}

// record writes the connection record. It creates a new file and renames it, so
// that readers see the whole record and its permissions are the owner's only.
func (e *Embedded) record() error {
	u := url.URL{Scheme: "redis", User: url.UserPassword("", e.pass.Reveal()), Host: e.addr}
	content, err := json.Marshal(redisconn.Record{URL: u.String(), PID: os.Getpid()})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(e.file), redisconn.EmbeddedFile+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = temp.Write(content)
	if err = errors.Join(err, temp.Close()); err == nil {
		err = os.Rename(temp.Name(), e.file)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
	}
	return err
}

// tick makes keys expire: the engine does not count time itself.
func (e *Embedded) tick() {
	ticker := time.NewTicker(engineTick)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-e.done:
			return
		case <-ticker.C:
			now := time.Now()
			e.engine.FastForward(now.Sub(last))
			last = now
		}
	}
}

// Options returns the options with which Open connects to the engine.
func (e *Embedded) Options(log *slog.Logger) Options {
	return Options{RedisOptions: config.RedisOptions{Addrs: []string{e.addr}, Password: e.pass, Embedded: true}, Logger: log}
}

// Close stops the engine. Its data is lost.
func (e *Embedded) Close() {
	e.close.Do(func() {
		_ = os.Remove(e.file)
		close(e.done)
		e.ticker.Wait()
		e.engine.Close()
		_ = e.lock.Close()
	})
}

// Join returns the options for the embedded engine that a server runs on the same
// data directory. The error is ErrNoServer if there is no record of one, or a
// crashed server left it behind. A server that runs but does not answer in time is
// not an error here: operations on the store report it.
func Join(dataDir string) (Options, error) {
	found, record, err := redisconn.FindEmbedded(dataDir)
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
		return Options{}, fmt.Errorf("%w: %s was left behind by process %d, which does not answer", ErrNoServer, filepath.Join(dataDir, redisconn.EmbeddedFile), record.PID)
	}
	return opts, nil
}
