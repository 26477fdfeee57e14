package docs

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/oasdiff/yaml"

	"telapi/test/testkit"
)

// metric is a metric that the code registers.
type metric struct {
	name, help string
	labels     []string
}

// metrics finds registered metrics in the source code. A running service exposes
// a vector only after its first observation.
func metrics(t *testing.T) []metric {
	t.Helper()
	var found []metric
	err := filepath.WalkDir(filepath.Join(root, "internal"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if m, ok := parseRegistration(call); ok {
					found = append(found, m)
				}
			}
			return true
		})
		return nil
	})
	testkit.Must(t, err)
	slices.SortFunc(found, func(a, b metric) int { return cmp.Compare(a.name, b.name) })
	return found
}

// parseRegistration parses a call such as NewCounterVec(prometheus.CounterOpts{…}, []string{…}).
func parseRegistration(call *ast.CallExpr) (m metric, ok bool) {
	for _, arg := range call.Args {
		literal, isLiteral := arg.(*ast.CompositeLit)
		if !isLiteral {
			continue
		}
		if options, ok := literal.Type.(*ast.SelectorExpr); ok && strings.HasSuffix(options.Sel.Name, "Opts") {
			for _, e := range literal.Elts {
				if field, ok := e.(*ast.KeyValueExpr); ok {
					switch fmt.Sprint(field.Key) {
					case "Name":
						m.name = literalText(field.Value)
					case "Help":
						m.help = literalText(field.Value)
					}
				}
			}
			continue
		}
		for _, e := range literal.Elts {
			m.labels = append(m.labels, literalText(e))
		}
	}
	return m, strings.HasPrefix(m.name, "telapi_")
}

// literalText returns the value of a string literal or of a concatenation of literals.
func literalText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, _ := strconv.Unquote(e.Value)
		return s
	case *ast.BinaryExpr:
		return literalText(e.X) + literalText(e.Y)
	}
	return ""
}

// alertRules contains the checked parts of deploy/prometheus/alerts.yaml.
type alertRules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Annotations struct{ Summary, Runbook string }
		}
	}
}

func readAlerts(t *testing.T) (rules alertRules) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/alerts.yaml"))
	if err == nil {
		_, err = yaml.Unmarshal(raw, &rules, yaml.DecodeOpts{})
	}
	testkit.Must(t, err)
	return rules
}

const metricsIntro = `# Metrics

<!-- Generated from the source; ` + "`make generate`" + ` rewrites it. -->

Look up what a metric counts. The API server and the media service expose metrics in the Prometheus text format:

` + "```sh" + `
curl -H "Authorization: Bearer $METRICS_TOKEN" http://127.0.0.1:3001/metrics
` + "```" + `

You need no token if METRICS_TOKEN is not set. OTEL_EXPORTER_OTLP_ENDPOINT exports the same metrics over OTLP. The usual Go metrics
(` + "`go_*`, `process_*`" + `) are there too. Labels never contain IDs, addresses, tokens or phone numbers.
The ` + "`# TYPE`" + ` lines of the response have their types.

[monitoring.md](monitoring.md) shows how to scrape them, [runbooks.md](runbooks.md) lists the alerts that use them.

`

func TestMetricsPageListsEveryMetric(t *testing.T) {
	var page strings.Builder
	page.WriteString(metricsIntro)
	for _, m := range metrics(t) {
		if m.help == "" {
			t.Errorf("%s has no help text", m.name)
		}
		name := m.name
		if len(m.labels) > 0 {
			name += "{" + strings.Join(m.labels, ",") + "}"
		}
		fmt.Fprintf(&page, "- `%s`: %s\n", name, m.help)
	}
	checkGenerated(t, "docs/metrics.md", page.String())
}

var (
	metricName = regexp.MustCompile(`\btelapi_[a-z0-9_]+`)
	// Group 1 lists the labels of an aggregation, group 3 the label selectors.
	labelled = regexp.MustCompile(`(?:by \(([^)]*)\) \(rate\()?\b(telapi_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	listed   = regexp.MustCompile(`[a-z_]+`)
	selected = regexp.MustCompile(`[a-z_]+[=!]~?`)
	partName = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// metricNames lists the metrics in an expression. The series of a histogram have its name.
func metricNames(expr string) []string {
	names := metricName.FindAllString(expr, -1)
	for i := range names {
		names[i] = partName.ReplaceAllString(names[i], "")
	}
	return names
}

func TestAlertsAndDashboardUseExistingMetrics(t *testing.T) {
	known := map[string][]string{}
	for _, m := range metrics(t) {
		known[m.name] = append([]string{"le", "job", "instance"}, m.labels...)
	}
	for _, file := range []string{"deploy/prometheus/alerts.yaml", "deploy/grafana/telapi.json"} {
		raw := readFile(t, file)
		for _, name := range metricNames(raw) {
			if known[name] == nil {
				t.Errorf("%s uses %s, which is not registered", file, name)
			}
		}
		for _, m := range labelled.FindAllStringSubmatch(raw, -1) {
			name := partName.ReplaceAllString(m[2], "")
			for _, label := range append(listed.FindAllString(m[1], -1), selected.FindAllString(m[3], -1)...) {
				if label = strings.TrimRight(label, "=~!"); !slices.Contains(known[name], label) {
					t.Errorf("%s uses %s with unknown label %s", file, name, label)
				}
			}
		}
	}
}

func TestDashboardShowsWhatRunbooksNeed(t *testing.T) {
	raw := readFile(t, "deploy/grafana/telapi.json")
	shown := metricNames(raw)
	for _, name := range []string{"telapi_sessions_waiting", "telapi_sessions_waiting_seconds", "telapi_dependency_up", "telapi_recoveries_total", "telapi_claims_expired_total"} {
		if !slices.Contains(shown, name) {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

func TestEveryAlertHasRunbook(t *testing.T) {
	page := readFile(t, "docs/runbooks.md")
	for _, g := range readAlerts(t).Groups {
		for _, r := range g.Rules {
			anchor := strings.TrimPrefix(r.Annotations.Runbook, "docs/runbooks.md#")
			heading := regexp.MustCompile(`(?mi)^#+ ` + strings.ReplaceAll(regexp.QuoteMeta(anchor), "-", "[- ]") + `$`)
			if r.Annotations.Summary == "" || anchor == "" || !heading.MatchString(page) {
				t.Errorf("%s: summary %q, runbook %q: want a summary and a heading of docs/runbooks.md", r.Alert, r.Annotations.Summary, r.Annotations.Runbook)
			}
			if row := regexp.MustCompile(`(?m)^\| [^|]*\b` + r.Alert + `\b[^|]* \| \[[^]]*\]\(#` + anchor + `\) \|$`); !row.MatchString(page) {
				t.Errorf("%s is not in the table of runbooks with #%s", r.Alert, anchor)
			}
		}
	}
}
