package calls

import "testing"

// A connection that is replaced withdraws its accepts, perhaps just before one of them is added.
// The demand would stay first in the list and delay the next session that it wants.
func TestWithdrawnDemandIsNotAdded(t *testing.T) {
	r, d := &Runtime{offers: offers{started: true}}, &Demand{}
	r.Withdraw(d)
	if r.Demand(d); len(r.offers.demands) > 0 {
		t.Error("the demand was added")
	}
}
