package fastlane

import (
	"bytes"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"
)

// overhead is what an entry takes beside its bytes.
const overhead = 512

func newEntry(path string, o Object) *entry {
	header := maps.Clone(o.Header)
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Length", strconv.Itoa(len(o.Body)))
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = header.Write(&head) // a buffer takes everything
	head.WriteString("Date: ")
	size := len(path) + head.Len() + len(o.Body) + overhead
	return &entry{path: path, head: head.Bytes(), body: o.Body, size: int64(size)}
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

// send writes an object at once: head and body as they are, or their records
// side by side where TLS makes such.
func (c *conn) send(e *entry) error {
	c.head = c.lane.dated(append(c.head[:0], e.head...))
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
