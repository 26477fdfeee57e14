package fastlane

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"os"
	"strconv"
	"time"
)

// overhead is what an entry takes beside its bytes.
const overhead = 512

// fileBytes is how large an object has to be for sending it from its file, where
// that is possible, to be cheaper than copying it.
const fileBytes = 16 << 10

// newEntry reads an object into memory, or keeps its file to send from.
func newEntry(path string, o Blob, inMemory bool) (*entry, error) {
	e := &entry{path: path, body: o.Body, length: int64(len(o.Body))}
	if o.File != nil {
		e.length = o.Size
		if err := e.take(o.File, inMemory || o.Size < fileBytes); err != nil {
			return nil, err
		}
	}
	header := maps.Clone(o.Header)
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Length", strconv.FormatInt(e.length, 10))
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = header.Write(&head) // a buffer takes everything
	head.WriteString("Date: ")
	e.head = head.Bytes()
	e.size = int64(len(path)+len(e.head)+overhead) + e.length
	return e, nil
}

func (e *entry) take(f *os.File, inMemory bool) (err error) {
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

// close lets go of the file, if there is one, once nobody sends from it.
func (e *entry) close() {
	if e != nil && e.file != nil {
		_ = e.file.Close()
	}
}

// stamp is the value of the Date field for one second.
type stamp struct {
	second int64
	text   []byte // with the end of the head
}

func (l *Lane) dated(head []byte) []byte {
	now := time.Now()
	s := l.date.Load()
	if s == nil || s.second != now.Unix() {
		s = &stamp{now.Unix(), append(now.UTC().AppendFormat(nil, http.TimeFormat), "\r\n\r\n"...)}
		l.date.Store(s)
	}
	return append(head, s.text...)
}

// send writes an object at once: head and body as they are or, where TLS makes
// records of them, those side by side.
func (c *conn) send(e *entry) error {
	c.head = c.lane.dated(append(c.head[:0], e.head...))
	if e.file != nil {
		return c.sender.send(c.head, e.file, e.length)
	}
	if c.records == nil {
		c.pieces = append(c.parts[:0], c.head, e.body)
		_, err := c.pieces.WriteTo(c.Conn)
		return err
	}
	c.records.hold()
	_, err := c.Conn.Write(c.head)
	if err == nil {
		_, err = c.Conn.Write(e.body)
	}
	return errors.Join(err, c.records.flush())
}
