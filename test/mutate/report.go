package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// report prints a table and the survivors. It returns an error if too few mutants were
// killed.
func report(w io.Writer, mutants []*mutant, accepted map[*mutant]bool) error {
	type count struct{ mutants, killed, equivalent int }
	counts, order, total := map[string]*count{}, []string{}, count{}
	of := func(unit string) *count {
		if counts[unit] == nil {
			counts[unit], order = &count{}, append(order, unit)
		}
		return counts[unit]
	}
	for _, m := range mutants {
		c := of(m.unit)
		c.mutants++
		total.mutants++
		if m.killed {
			c.killed++
			total.killed++
		}
	}
	for m := range accepted {
		if c := counts[m.unit]; c != nil {
			c.equivalent++
			total.equivalent++
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, c count) {
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%.1f %%\t\n", name, c.mutants, c.killed, c.mutants-c.killed, c.equivalent, 100*share(c.killed, c.mutants))
	}
	_, _ = fmt.Fprintln(table, "\tmutants\tkilled\tsurvived\tequivalent\tkilled\t")
	for _, unit := range order {
		row(unit, *counts[unit])
	}
	row("all", total)
	if err := table.Flush(); err != nil {
		return err
	}
	for _, m := range mutants {
		if !m.killed {
			_, _ = fmt.Fprintln(w, "survived:", m)
		}
	}
	if share(total.killed, total.mutants) < minKilled {
		return fmt.Errorf("%.1f %% of the mutants were killed: kill at least %.0f %% with new tests, or list equivalent ones in test/mutate/equivalent.txt",
			100*share(total.killed, total.mutants), 100*minKilled)
	}
	return nil
}

func share(part, of int) float64 {
	if of == 0 {
		return 1
	}
	return float64(part) / float64(of)
}
