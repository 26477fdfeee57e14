package calls

import (
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"telapi/internal/kv"
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

// keptNotice has the entries of a notice, see kv.Items.
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
			count := len(found)
			add := func(position, entry string) {
				found = append(found, Delivery{Position: position, JSON: jsontext.Value(entry)})
			}
			if !kv.Items(n.before, n.last, n.lines, add) {
				found = found[:count] // it and the later ones are read
				break
			}
		}
	}
	k.clear()
	return found
}
