package fastlane

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"strconv"
	"time"
)

// entryOverhead estimates the memory of an entry without its content.
const entryOverhead = 512

// minSendfile is the size from which sendfile is faster than a copy in memory.
const minSendfile = 16 << 10

// newEntry reads a blob into memory, or keeps its file for sendfile.
func newEntry(path string, b Blob, inMemory bool) (*entry, error) {
	e := &entry{path: path, length: b.Size}
	if err := e.open(b.File, inMemory || b.Size < minSendfile); err != nil {
		return nil, err
	}
	b.Header.Set("Content-Length", strconv.FormatInt(b.Size, 10))
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = b.Header.Write(&head)
	head.WriteString("Date: ")
	e.head = head.Bytes()
	e.size = int64(len(path)+len(e.head)+entryOverhead) + b.Size
	return e, nil
}

func (e *entry) open(f *os.File, inMemory bool) (err error) {
	if !inMemory {
		if e.file, err = newSource(f); err == nil {
			return nil
		}
	}
	defer func() { _ = f.Close() }()
	e.body = make([]byte, e.length)
	_, err = f.ReadAt(e.body, 0)
	return err
}

// close closes the file, if any, when no connection sends it anymore.
func (e *entry) close() {
	if e != nil && e.file != nil {
		_ = e.file.Close()
	}
}

// dateField is the value of the Date field for one second.
type dateField struct {
	second int64
	text   []byte // with the end of the header
}

// appendDate completes a header.
func (l *Lane) appendDate(head []byte) []byte {
	now := time.Now()
	s := l.date.Load()
	if s == nil || s.second != now.Unix() {
		s = &dateField{now.Unix(), append(now.UTC().AppendFormat(nil, http.TimeFormat), "\r\n\r\n"...)}
		l.date.Store(s)
	}
	return append(head, s.text...)
}

// send writes header and body with one system call, also with TLS.
func (c *conn) send(e *entry) error {
	c.head = c.lane.appendDate(append(c.head[:0], e.head...))
	if e.file != nil {
		return c.sender.send(c.head, e.file, e.length)
	}
	if c.records == nil {
		c.pieces = append(c.parts[:0], c.head, e.body)
		_, err := c.pieces.WriteTo(c.Conn)
		return err
	}
	c.records.buffer()
	_, err := c.Conn.Write(c.head)
	if err == nil {
		_, err = c.Conn.Write(e.body)
	}
	return errors.Join(err, c.records.flush())
}
