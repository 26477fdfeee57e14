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

	"telapi/internal/redact"
)

const (
	// engineFile stands in DATA_DIR while a server runs the embedded engine and
	// tells the command line and runtimes of the same user how to join.
	engineFile = "embedded-kv.json"

	// engineLock is held by the server that runs an engine, and outlives it:
	// removing it would let two in.
	engineLock = "embedded-kv.lock"

	// engineTick is how precisely keys expire. The engine's own clock mode
	// would walk all keys at every command; this walks them ten times a second.
	engineTick = 100 * time.Millisecond
)

// ErrNoServer says that nobody runs an embedded engine on a data folder.
var ErrNoServer = errors.New("no server is running on this data folder")

// engineRecord is the content of engineFile.
type engineRecord struct {
	URL string `json:"url"` // redis://:password@127.0.0.1:port
	PID int    `json:"pid"`
}

// Embedded is a key-value engine inside the process, for one machine. Others on
// it may join by loopback.
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

// StartEmbedded starts an engine and records in dataDir how to join it.
func StartEmbedded(dataDir string, log *slog.Logger) (*Embedded, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dataDir, engineLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data folder: %w", err)
	}
	if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("another server is running on %s: stop it, or give this one a DATA_DIR of its own, or set REDIS_URL so that several can work together", dataDir)
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
		file:   filepath.Join(dataDir, engineFile),
		lock:   lock,
		done:   make(chan struct{}),
	}
	if err := e.record(); err != nil {
		engine.Close()
		_ = lock.Close()
		return nil, fmt.Errorf("record how to join: %w", err)
	}
	e.ticker.Go(e.tick)
	log.Warn("the key-value store is embedded: for one machine and for development; what it holds does not survive a restart",
		"address", e.addr, "joined_by", e.file)
	return e, nil
}

// record writes a new file and moves it into place, so that nobody reads half
// of it, nor with other permissions than the owner's.
func (e *Embedded) record() error {
	u := url.URL{Scheme: "redis", User: url.UserPassword("", e.pass.Reveal()), Host: e.addr}
	content, err := json.Marshal(engineRecord{URL: u.String(), PID: os.Getpid()})
	if err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(e.file), engineFile+".*") // of mode 0600
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

// tick lets keys expire: the engine's TTLs stand still by themselves.
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

// Options are what Open needs to connect to the engine.
func (e *Embedded) Options(log *slog.Logger) Options {
	return Options{Addrs: []string{e.addr}, Password: e.pass, Logger: log, embedded: true}
}

// Close ends the engine and everything in it.
func (e *Embedded) Close() {
	e.close.Do(func() {
		_ = os.Remove(e.file)
		close(e.done)
		e.ticker.Wait()
		e.engine.Close()
		_ = e.lock.Close()
	})
}

// Join returns what Open needs to connect to the engine that a server runs on
// the same data folder. Where there is none, because nothing is recorded or the
// record was left behind by a server that died, the error is ErrNoServer. One
// that lives and is slow to answer is joined: whoever could not tell it something
// has to know.
func Join(dataDir string) (Options, error) {
	file := filepath.Join(dataDir, engineFile)
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Options{}, fmt.Errorf("%w: there is no %s", ErrNoServer, file)
	}
	if err != nil {
		return Options{}, fmt.Errorf("read how to join the server: %w", err)
	}
	var record engineRecord
	if json.Unmarshal(content, &record) != nil {
		return Options{}, fmt.Errorf("%s is damaged; delete it and start the server again", file)
	}
	u, err := url.Parse(record.URL)
	if err != nil {
		return Options{}, fmt.Errorf("%s is damaged; delete it and start the server again", file)
	}
	password, _ := u.User.Password()
	opts := Options{Addrs: []string{u.Host}, Password: redact.Secret(password), embedded: true}
	client, err := rueidis.NewClient(opts.client())
	if client != nil {
		client.Close()
	}
	var network net.Error
	hangs := errors.As(err, &network) && network.Timeout() && !errors.Is(syscall.Kill(record.PID, 0), syscall.ESRCH)
	if err != nil && !hangs {
		return Options{}, fmt.Errorf("%w: %s was left behind by process %d, which does not answer", ErrNoServer, file, record.PID)
	}
	return opts, nil
}
