package cache

import (
	"fmt"
	"testing"
)

func TestLRUKeepsValuesOfOtherTeams(t *testing.T) {
	c := NewLRU[int](10, 40)
	expect := func(keys ...string) {
		t.Helper()
		if len(c.values) != len(keys) {
			t.Errorf("%d values, want %v", len(c.values), keys)
		}
		for _, key := range keys {
			if _, ok := c.values[key]; !ok {
				t.Errorf("no value of %s", key)
			}
		}
		var used int64
		for _, own := range c.teams {
			used += own.used
		}
		if used != c.used || used > c.total {
			t.Errorf("%d used by teams, %d in total", used, c.used)
		}
	}
	for i := range 4 {
		c.Add("a", fmt.Sprint("a", i), 1, i)
	}
	c.Add("b", "b0", 2, 0)
	if _, ok := c.Get("a0"); !ok {
		t.Error("a0 is missing")
	}
	c.Add("a", "a4", 2, 4) // instead of a1 and a2
	expect("a0", "a3", "a4", "b0")
	c.Add("a", "a5", 5, 5) // more than the share
	c.Add("c", "c0", 4, 0)
	expect("a0", "a3", "a4", "b0", "c0")
	c.Add("d", "d0", 1, 0) // instead of a value of a or c, which have most
	if _, b := c.values["b0"]; !b || len(c.values) != 5 {
		t.Errorf("%d values, b0 %v; want 5 with b0", len(c.values), b)
	}
	c.Add("b", "b0", 1, 1)
	if v, ok := c.Get("b0"); !ok || v != 1 {
		t.Errorf("b0 is %d, %v; want the new value", v, ok)
	}
	for key := range c.values {
		c.Remove(key)
	}
	expect()
	if len(c.teams) != 0 {
		t.Errorf("teams %v, want none", c.teams)
	}
}
