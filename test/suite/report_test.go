package main

import (
	"strings"
	"testing"
)

func TestReportShowsFailuresAndProgress(t *testing.T) {
	var out strings.Builder
	r := newReport(3, &out)
	for line := range strings.Lines(`{"Action":"start","Package":"telapi/a"}
{"Action":"start","Package":"telapi/b"}
{"Action":"output","Package":"telapi/a","Test":"TestGood","Output":"noise of a test that passes\n"}
{"Action":"output","Package":"telapi/a","Test":"TestBad","Output":"reason of the failure\n"}
{"Action":"pass","Package":"telapi/a","Test":"TestGood"}
{"Action":"fail","Package":"telapi/a","Test":"TestBad"}
{"Action":"output","Package":"telapi/a","Output":"FAIL telapi/a\n"}
{"Action":"fail","Package":"telapi/a","Elapsed":2.4}
{"Action":"output","Package":"telapi/b","Test":"TestCrash","Output":"panic: oh\n"}
{"Action":"fail","Package":"telapi/b","Elapsed":61}
not JSON
{"Action":"build-output","ImportPath":"telapi/c","Output":"undefined: x\n"}
{"Action":"fail","Package":"telapi/c"}
`) {
		r.add([]byte(strings.TrimSuffix(line, "\n")))
	}
	const want = `reason of the failure
FAIL telapi/a
… 1 of 3 packages; running: b
panic: oh
… 2 of 3 packages; running: 
not JSON
undefined: x
… 3 packages; slowest: b 1m1s, a 2s, c 0s
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
