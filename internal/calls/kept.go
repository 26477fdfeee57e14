package calls

import (
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/callruntime/wire"
)

// maxKept bounds the bytes of kept entries. If there are more, Poll reads them from the
// stream.
const maxKept = 8 << 10

// kept has the newest entries of a stream, from notices that follow each other without a
// gap. That the entry before them is at a reader's position proves as much as reading it:
// the store has not lost it.
type kept struct {
	mu     sync.Mutex
	before string // position of the entry before the first
	last   string // position of the last entry
	list   []keptNotice
	bytes  int
}

// keptNotice has the entries of a notice, one per line. They have consecutive numbers and
// the same time.
type keptNotice struct{ before, last, lines string }

// add adds a notice. It may have no entries.
func (k *kept) add(n keptNotice) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.last != n.before {
		k.clear()
		k.before = n.before
	}
	k.last, k.list, k.bytes = n.last, append(k.list, n), k.bytes+len(n.lines)
	if n.lines == "" || k.bytes > maxKept {
		k.clear()
	}
}

// clear removes all entries. The caller holds mu.
func (k *kept) clear() { k.before, k.last, k.list, k.bytes = "", "", nil, 0 }

// take removes all entries. It returns them if they follow the entry at position.
func (k *kept) take(position string) (found []Delivery) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.before == position {
		for _, n := range k.list {
			all, complete := n.appendTo(found)
			if !complete {
				break // it and the later ones are read
			}
			found = all
		}
	}
	k.clear()
	return found
}

// appendTo appends the entries of a notice. complete is false unless there is a line for
// each: there are more if an entry contains a line feed.
func (n keptNotice) appendTo(list []Delivery) (_ []Delivery, complete bool) {
	number := wire.EntryNumber(n.before)
	_, at, _ := strings.Cut(n.last, "-")
	for line := range strings.SplitSeq(n.lines, "\n") {
		number++
		list = append(list, Delivery{Position: strconv.FormatInt(number, 10) + "-" + at, JSON: jsontext.Value(line)})
	}
	return list, number == wire.EntryNumber(n.last)
}
