package campaign

import "testing"

func TestLedger(t *testing.T) {
	deliver := func(o *operation, l *ledger, position string) {
		l.update(o.id, func(o *operation) {
			o.frame.acknowledged, o.awaited, o.callback.acknowledged, o.message.acknowledged = true, true, true, true
			o.frame.arrive(position)
			o.callback.arrive(position)
		})
		l.receive(o.id, position)
	}
	for name, tt := range map[string]struct {
		run  func(l *ledger, first, second *operation)
		want row
	}{
		"complete": {func(l *ledger, first, second *operation) {
			deliver(first, l, "1-100")
			deliver(second, l, "2-100")
			l.update(second.id, func(o *operation) { o.frame.arrive("2-100") }) // delivered again after a restart
		}, row{Frames: 2, Callbacks: 2, Messages: 2}},
		"lost": {func(l *ledger, first, second *operation) {
			deliver(first, l, "1-100")
			l.update(second.id, func(o *operation) { o.frame.acknowledged = true })
			l.lossReported("s", true)
		}, row{Frames: 2, Callbacks: 1, Messages: 1, Lost: 1, Silent: 1, Notified: 1}},
		"lost and reported": {func(l *ledger, first, second *operation) {
			deliver(first, l, "1-100")
			l.update(second.id, func(o *operation) { o.frame.acknowledged = true })
			l.lossReported("s", true)
			l.lossReported("s", false)
		}, row{Frames: 2, Callbacks: 1, Messages: 1, Lost: 1, Notified: 1}},
		"work item lost": {func(l *ledger, first, second *operation) {
			deliver(first, l, "1-100")
			l.update(second.id, func(o *operation) { o.awaited = true })
		}, row{Frames: 1, Callbacks: 1, Messages: 1, Lost: 1, Silent: 1}},
		"work item timed out": {func(l *ledger, first, second *operation) {
			deliver(first, l, "1-100")
			l.update(second.id, func(o *operation) { o.awaited, o.timedOut = true, true })
		}, row{Frames: 1, Callbacks: 1, Messages: 1, Lost: 1}},
		"twice": {func(l *ledger, first, second *operation) {
			deliver(first, l, "1-100")
			deliver(second, l, "2-100")
			l.update(second.id, func(o *operation) { o.frame.arrive("3-100") })
		}, row{Frames: 2, Callbacks: 2, Messages: 2, Twice: 1}},
		"received twice": {func(l *ledger, first, second *operation) {
			deliver(first, l, "1-100")
			deliver(second, l, "2-100")
			l.receive(second.id, "2-100")
		}, row{Frames: 2, Callbacks: 2, Messages: 2, Twice: 1}},
		"twice and reported": {func(l *ledger, first, second *operation) {
			deliver(first, l, "1-100")
			deliver(second, l, "2-100")
			l.update(second.id, func(o *operation) { o.frame.arrive("2-200") })
			l.lossReported("s", true)
		}, row{Frames: 2, Callbacks: 2, Messages: 2, Notified: 1}},
		"out of order": {func(l *ledger, first, second *operation) {
			deliver(second, l, "1-100")
			deliver(first, l, "2-100")
		}, row{Frames: 2, Callbacks: 2, Messages: 2, Disordered: 3}},
		"out of order and reported": {func(l *ledger, first, second *operation) {
			deliver(second, l, "1-100")
			deliver(first, l, "2-100")
			l.lossReported("s", true)
			l.lossReported("s", false)
		}, row{Frames: 2, Callbacks: 2, Messages: 2, Notified: 1}},
		"in order in a new epoch": {func(l *ledger, first, second *operation) {
			deliver(first, l, "7-100")
			deliver(second, l, "1-200")
		}, row{Frames: 2, Callbacks: 2, Messages: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger()
			p := l.begin("")
			tt.run(l, l.open("s"), l.open("s"))
			got := l.count(p)
			got.FirstLost, got.FirstSilent = "", ""
			if got != tt.want {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}
