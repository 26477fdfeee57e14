package redisstore

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	// snapshotFile holds the content of an embedded engine. Its first line is a
	// snapshotHeader; the rest are the commands that create the content.
	snapshotFile    = "embedded-kv.snapshot"
	snapshotVersion = 1

	// snapshotInterval is the time between snapshots. It grows with the time for
	// which a snapshot locks the engine, so that this is at most 2 % of the time.
	snapshotInterval = 2 * time.Second
	lockedFactor     = 50

	running, stopped = false, true // states of an engine whose snapshot is written
)

// snapshotHeader describes a snapshot.
type snapshotHeader struct {
	Version int       `json:"version"`
	SavedAt time.Time `json:"savedAt"`
	Keys    int       `json:"keys"`
	Stopped bool      `json:"stopped"` // nothing was stored after it
	Bytes   int       `json:"bytes"`   // length and checksum of the commands
	SHA256  string    `json:"sha256"`
}

// snapshots saves an engine's content to a file and loads it. Only one goroutine at
// a time may use it.
type snapshots struct {
	engine  *engine
	path    string
	log     *slog.Logger
	privacy privacy

	sum    string // checksum of the last snapshot
	failed bool   // the last save
}

// load restores the content from the file, and marks the file as that of a running
// engine. A file that cannot be read is renamed, and the engine stays empty.
func (s *snapshots) load() error {
	header, commands, err := readSnapshot(s.path)
	if err == nil {
		err = s.engine.load(commands)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist): // the first start in this directory
	case err != nil:
		aside := s.path + ".unreadable-" + time.Now().UTC().Format("20060102T150405.000")
		if err := os.Rename(s.path, aside); err != nil {
			return fmt.Errorf("rename the unreadable snapshot: %w", err)
		}
		s.log.Warn("cannot read the snapshot of the embedded key-value store: the store starts empty, and conversations in progress are lost",
			"error", err, "renamed_to", aside)
	case header.Stopped:
		s.log.Info("restored the embedded key-value store", "keys", header.Keys, "saved_at", header.SavedAt)
	default:
		s.log.Warn("the last server did not stop normally: data that it stored after its last snapshot is lost. The conversations concerned are notified",
			"keys", header.Keys, "saved_at", header.SavedAt)
	}
	_, err = s.write(running)
	return err
}

// save writes a snapshot. Of several failures in a row it logs the first. It returns
// for how long the engine was locked.
func (s *snapshots) save(isStopped bool) (locked time.Duration) {
	locked, err := s.write(isStopped)
	switch {
	case err != nil && (isStopped || !s.failed):
		s.log.Error("cannot write the snapshot of the embedded key-value store: if the server stops now, newer data is lost", "error", err)
	case err == nil && s.failed:
		s.log.Info("snapshots of the embedded key-value store are written again")
	}
	s.failed = err != nil
	return locked
}

// write writes a snapshot unless nothing has changed. A snapshot of a stopped engine
// is always written.
func (s *snapshots) write(isStopped bool) (locked time.Duration, err error) {
	start := time.Now()
	commands, keys, err := s.engine.dump()
	locked = time.Since(start)
	if err != nil {
		return locked, err
	}
	commands = s.privacy.redact(commands)
	sum, length := sha256.New(), byteCount(0)
	if err := encodeCommands(io.MultiWriter(sum, &length), commands); err != nil {
		return locked, err
	}
	header := snapshotHeader{
		Version: snapshotVersion, SavedAt: start.UTC(), Keys: keys, Stopped: isStopped,
		Bytes: int(length), SHA256: hex.EncodeToString(sum.Sum(nil)),
	}
	if header.SHA256 == s.sum && !isStopped {
		return locked, nil
	}
	err = replaceFile(s.path, func(w io.Writer) error {
		line, err := json.Marshal(header)
		if err == nil {
			_, err = w.Write(append(line, '\n'))
		}
		return errors.Join(err, encodeCommands(w, commands))
	})
	if err == nil {
		s.sum = header.SHA256
	}
	return locked, err
}

// encodeCommands writes each command as a value of its own, so that the encoder needs
// little memory.
func encodeCommands(w io.Writer, commands [][]string) error {
	encoder := gob.NewEncoder(w)
	for _, command := range commands {
		if err := encoder.Encode(command); err != nil {
			return err
		}
	}
	return nil
}

// byteCount counts the bytes that are written to it.
type byteCount int

func (c *byteCount) Write(b []byte) (int, error) {
	*c += byteCount(len(b))
	return len(b), nil
}

// readSnapshot reads a file and verifies its checksum.
func readSnapshot(path string) (header snapshotHeader, commands [][]string, err error) {
	file, err := os.ReadFile(path)
	if err != nil {
		return header, nil, err
	}
	line, content, _ := bytes.Cut(file, []byte("\n"))
	sum := sha256.Sum256(content)
	switch err := json.Unmarshal(line, &header); {
	case err != nil:
		return header, nil, errors.New("it is damaged: its first line is not a header")
	case header.Version > snapshotVersion:
		return header, nil, fmt.Errorf("a newer version of telapi wrote it: its format is %d, and this version reads %d", header.Version, snapshotVersion)
	case header.Bytes != len(content):
		return header, nil, fmt.Errorf("it is damaged: %d bytes are missing", header.Bytes-len(content))
	case header.SHA256 != hex.EncodeToString(sum[:]):
		return header, nil, errors.New("it is damaged: its checksum is wrong")
	}
	decoder := gob.NewDecoder(bytes.NewReader(content))
	for {
		var command []string
		if err := decoder.Decode(&command); errors.Is(err, io.EOF) {
			return header, commands, nil
		} else if err != nil {
			return header, nil, err
		}
		commands = append(commands, command)
	}
}

// replaceFile writes a file with mode 0600. After a crash the file has its old or its
// new content. Only one goroutine at a time may write a file.
func replaceFile(path string, write func(io.Writer) error) error {
	temp := path + ".new"
	_ = os.Remove(temp) // a crash may have left it
	file, err := os.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	buffer := bufio.NewWriterSize(file, 64<<10)
	if err = errors.Join(write(buffer), buffer.Flush()); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
