package channel

import (
	"cmp"
	"encoding/base64"
	"regexp"
	"strconv"
	"strings"
)

var cursorForm = regexp.MustCompile(`^([A-Za-z0-9]{1,64})\.([0-9]{1,19}-[0-9]{1,19})$`)

// Start is the cursor of who was cut off before it learnt of any: everything of
// this life, whichever it is.
const Start = "start"

// anyEpoch cannot be part of a cursor that was given out.
const anyEpoch = "*"

// String is the cursor as browsers see it: opaque, for they must not reckon
// with it.
func (c Cursor) String() string {
	return base64.RawURLEncoding.EncodeToString([]byte(c.Epoch + "." + c.id()))
}

// ParseCursor reads what String wrote; ok is false for anything else.
func ParseCursor(s string) (c Cursor, ok bool) {
	if s == Start {
		return Cursor{Epoch: anyEpoch}, true
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(raw) > 128 {
		return Cursor{}, false
	}
	m := cursorForm.FindSubmatch(raw)
	if m == nil {
		return Cursor{}, false
	}
	c = Cursor{string(m[1]), string(m[2])}
	if c.ID == beginning {
		c.ID = ""
	}
	return c, true
}

// beginning is how the place before everything is written.
const beginning = "0-0"

func (c Cursor) id() string { return cmp.Or(c.ID, beginning) }

// Compare orders two cursors of one epoch.
func (c Cursor) Compare(other Cursor) int {
	ams, aseq := c.parts()
	bms, bseq := other.parts()
	return cmp.Or(cmp.Compare(ams, bms), cmp.Compare(aseq, bseq))
}

func (c Cursor) parts() (ms, seq uint64) {
	left, right, _ := strings.Cut(c.id(), "-")
	ms, _ = strconv.ParseUint(left, 10, 64)
	seq, _ = strconv.ParseUint(right, 10, 64)
	return ms, seq
}
