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
	counts, order := map[string]*count{"all": {}}, []string{}
	each := func(unit string, change func(*count)) {
		if counts[unit] == nil {
			counts[unit], order = &count{}, append(order, unit)
		}
		change(counts[unit])
		change(counts["all"])
	}
	for _, m := range mutants {
		each(m.unit, func(c *count) {
			c.mutants++
			if m.killed {
				c.killed++
			}
		})
	}
	for m := range accepted {
		each(m.unit, func(c *count) { c.equivalent++ })
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "\tmutants\tkilled\tsurvived\tequivalent\tkilled\t")
	percent, tooFew := 0.0, ""
	for _, unit := range append(order, "all") {
		c := *counts[unit]
		percent = 100 * float64(c.killed) / float64(max(1, c.mutants))
		_, _ = fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%.1f %%\t\n", unit, c.mutants, c.killed, c.mutants-c.killed, c.equivalent, percent)
		if (unit == "all" || unit == simulationUnit) && percent < minKilled {
			tooFew = fmt.Sprintf("%.1f %% of the mutants of %s were killed", percent, unit)
		}
	}
	check(table.Flush())
	for _, m := range mutants {
		if !m.killed {
			_, _ = fmt.Fprintln(w, "survived:", m)
		}
	}
	if tooFew != "" {
		return fmt.Errorf("%s: kill at least %d %% with new tests, or list equivalent ones in test/mutate/equivalent.txt", tooFew, minKilled)
	}
	return nil
}
