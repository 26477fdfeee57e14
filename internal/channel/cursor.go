package channel

import (
	"cmp"
	"encoding/base64"
	"regexp"
	"strconv"
	"strings"
)

// Start is the cursor of a browser that lost its connection before it received
// one. It resumes at the start of the current epoch.
const Start = "start"

const (
	anyEpoch  = "*"   // never part of an issued cursor
	beginning = "0-0" // written form of the empty ID
)

var cursorPattern = regexp.MustCompile(`^([A-Za-z0-9]{1,64})\.([0-9]{1,19}-[0-9]{1,19})$`)

// Cursor is a position in the history. Epoch names one life of the channel's
// data. A cursor of another epoch cannot be resumed.
type Cursor struct {
	Epoch string
	ID    string // stream ID; empty before the first message
}

// String returns the cursor as an opaque string for browsers.
func (c Cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(c.Epoch + "." + cmp.Or(c.ID, beginning)))
}

// ParseCursor parses Start or the result of String.
func ParseCursor(s string) (c Cursor, ok bool) {
	if s == Start {
		return Cursor{Epoch: anyEpoch}, true
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(raw) > 128 {
		return Cursor{}, false
	}
	m := cursorPattern.FindSubmatch(raw)
	if m == nil {
		return Cursor{}, false
	}
	c = Cursor{string(m[1]), string(m[2])}
	if c.ID == beginning {
		c.ID = ""
	}
	return c, true
}

// Compare orders two cursors of one epoch.
func (c Cursor) Compare(other Cursor) int {
	ms, seq := c.parts()
	otherMs, otherSeq := other.parts()
	return cmp.Or(cmp.Compare(ms, otherMs), cmp.Compare(seq, otherSeq))
}

func (c Cursor) parts() (ms, seq uint64) {
	left, right, _ := strings.Cut(c.ID, "-")
	ms, _ = strconv.ParseUint(left, 10, 64)
	seq, _ = strconv.ParseUint(right, 10, 64)
	return ms, seq
}
