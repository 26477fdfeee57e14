package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// goMutator collects the mutants of a Go file.
type goMutator struct {
	info    *types.Info
	file    *token.File
	text    []byte
	next    int // number of the next mutant
	mutants []*mutant
	edits   []edit
	done    map[ast.Expr]bool // comparisons that a condition covers
}

// edit replaces text[start:end].
type edit struct {
	start, end int
	with       string
	outer      int // the other end of the expression, which orders edits at the same place
}

// add records a mutant of a node and returns its number.
func (m *goMutator) add(node ast.Node, mutation string) int {
	m.mutants = append(m.mutants, &mutant{number: m.next, line: m.file.Line(node.Pos()), text: m.line(node.Pos()), mutation: mutation})
	m.next++
	return m.next - 1
}

func (m *goMutator) line(pos token.Pos) string {
	start := m.file.Offset(m.file.LineStart(m.file.Line(pos)))
	text, _, _ := strings.Cut(string(m.text[start:]), "\n")
	return strings.TrimSpace(text)
}

// source returns the text of a node in one line.
func (m *goMutator) source(node ast.Node) string {
	return strings.Join(strings.Fields(string(m.text[m.file.Offset(node.Pos()):m.file.Offset(node.End())])), " ")
}

func (m *goMutator) wrap(node ast.Node, before, after string) {
	start, end := m.file.Offset(node.Pos()), m.file.Offset(node.End())
	m.edits = append(m.edits, edit{start, start, before, end}, edit{end, end, after, start})
}

// instrumented returns the text of the file with all its mutants.
func (m *goMutator) instrumented() []byte {
	// At one place, expressions end before others start; inner ones end first and start last.
	slices.SortStableFunc(m.edits, func(a, b edit) int {
		if a.start != b.start {
			return a.start - b.start
		}
		if closes := a.outer < a.start; closes != (b.outer < b.start) {
			if closes {
				return -1
			}
			return 1
		}
		return b.outer - a.outer
	})
	var text []byte
	at := 0
	for _, e := range m.edits {
		text = append(append(text, m.text[at:e.start]...), e.with...)
		at = e.end
	}
	return append(text, m.text[at:]...)
}

func (m *goMutator) visit(node ast.Node) bool {
	switch n := node.(type) {
	case *ast.GenDecl:
		return n.Tok == token.VAR
	case *ast.IfStmt:
		if m.onlyLogs(n) {
			return false
		}
		m.condition(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			m.force(n.Cond, false)
		}
	case *ast.SwitchStmt:
		m.cases(n)
	case *ast.BinaryExpr:
		m.binary(n)
	case *ast.ReturnStmt:
		for _, result := range n.Results {
			if id, ok := result.(*ast.Ident); ok && (id.Name == "true" || id.Name == "false") {
				number := m.add(id, fmt.Sprintf("return %s becomes %t", id.Name, id.Name == "false"))
				m.wrap(id, "(", fmt.Sprintf(" != mutantOn(%d))", number))
			}
		}
	case *ast.BlockStmt:
		m.statements(n.List)
	case *ast.CaseClause:
		m.statements(n.Body)
	case *ast.CommClause:
		m.statements(n.Body)
	}
	return true
}

// isBool returns whether an expression is a bool that is not a constant.
func (m *goMutator) isBool(e ast.Expr) bool {
	value := m.info.Types[e]
	if value.Type == nil || value.Value != nil {
		return false
	}
	basic, ok := value.Type.(*types.Basic)
	return ok && basic.Info()&types.IsBoolean != 0
}

// force makes an expression true or false.
func (m *goMutator) force(e ast.Expr, value bool) {
	if !m.isBool(e) {
		return
	}
	number := m.add(e, fmt.Sprintf("%s becomes %t", m.source(e), value))
	if value {
		m.wrap(e, "((", fmt.Sprintf(") || mutantOn(%d))", number))
	} else {
		m.wrap(e, "((", fmt.Sprintf(") && !mutantOn(%d))", number))
	}
}

// condition makes a condition true, and false. A check of an error is only negated:
// otherwise the mutants would be those of the called function.
func (m *goMutator) condition(e ast.Expr) {
	compare, ok := e.(*ast.BinaryExpr)
	if ok && m.isErrorCheck(compare) {
		return // binary negates it
	}
	if ok && m.isComparison(compare) {
		m.cover(compare)
	}
	m.force(e, true)
	m.force(e, false)
}

// cover marks a comparison for which == and != need no mutant.
func (m *goMutator) cover(e ast.Expr) {
	if m.done == nil {
		m.done = map[ast.Expr]bool{}
	}
	m.done[e] = true
}

func (m *goMutator) isErrorCheck(e *ast.BinaryExpr) bool {
	id, ok := e.Y.(*ast.Ident)
	return ok && id.Name == "nil" && types.Identical(m.info.Types[e.X].Type, types.Universe.Lookup("error").Type())
}

func (m *goMutator) isComparison(e *ast.BinaryExpr) bool {
	switch e.Op {
	case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		return true
	}
	return false
}

// boundaries has the operator to which a comparison changes.
var boundaries = map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}

// functions of switchFile that change an operator.
var functions = map[token.Token]struct{ name, becomes string }{
	token.ADD: {"mutantAdd", "-"}, token.SUB: {"mutantSub", "+"}, token.MUL: {"mutantMul", "/"}, token.QUO: {"mutantDiv", "*"},
}

func (m *goMutator) binary(e *ast.BinaryExpr) {
	value := m.info.Types[e]
	if value.Type == nil || value.Value != nil {
		return
	}
	if e.Op == token.LAND || e.Op == token.LOR {
		for _, operand := range []ast.Expr{e.X, e.Y} {
			if inner, ok := operand.(*ast.BinaryExpr); ok && m.isComparison(inner) {
				m.cover(inner)
			}
			if inner, ok := operand.(*ast.BinaryExpr); !ok || inner.Op != e.Op {
				m.force(operand, e.Op == token.LAND)
			}
		}
		return
	}
	if !m.isComparison(e) {
		f, ok := functions[e.Op]
		basic, isBasic := value.Type.Underlying().(*types.Basic)
		if !ok || !isBasic || basic.Info()&(types.IsInteger|types.IsFloat) == 0 || basic.Info()&types.IsUntyped != 0 {
			return
		}
		number := m.add(e, fmt.Sprintf("%s becomes %s", m.source(e), m.withOperator(e, f.becomes)))
		m.wrap(e, fmt.Sprintf("%s(%d, ", f.name, number), ")")
		m.replaceOperator(e, ", ")
		return
	}
	if !m.isBool(e) {
		return
	}
	if becomes := boundaries[e.Op]; becomes != "" {
		number := m.add(e, fmt.Sprintf("%s becomes %s", m.source(e), m.withOperator(e, becomes)))
		equal := fmt.Sprintf("mutantOn(%d) && %s == %s", number, m.source(e.X), m.source(e.Y))
		if e.Op == token.LSS || e.Op == token.GTR {
			m.wrap(e, "((", ") || "+equal+")")
		} else {
			m.wrap(e, "((", ") && !("+equal+"))")
		}
		return
	}
	if !m.done[e] {
		number := m.add(e, "not "+m.source(e))
		m.wrap(e, "((", fmt.Sprintf(") != mutantOn(%d))", number))
	}
}

func (m *goMutator) withOperator(e *ast.BinaryExpr, operator string) string {
	return m.source(e.X) + " " + operator + " " + m.source(e.Y)
}

func (m *goMutator) replaceOperator(e *ast.BinaryExpr, with string) {
	start := m.file.Offset(e.OpPos)
	m.edits = append(m.edits, edit{start, start + len(e.Op.String()), with, start + 1})
}

// cases removes the cases of a switch, one at a time.
func (m *goMutator) cases(s *ast.SwitchStmt) {
	for _, clause := range s.Body.List {
		for _, e := range clause.(*ast.CaseClause).List {
			if s.Tag == nil {
				if compare, ok := e.(*ast.BinaryExpr); ok {
					m.cover(compare)
				}
				m.force(e, false)
				continue
			}
			tag := m.info.Types[s.Tag].Type
			basic, ok := tag.Underlying().(*types.Basic)
			_, literal := e.(*ast.BasicLit)
			if !ok || basic.Kind() != types.String || literal && tag != types.Type(basic) {
				continue
			}
			number := m.add(e, "without case "+m.source(e))
			m.wrap(e, fmt.Sprintf("mutantCase(%d, ", number), ")")
		}
	}
}

// statements removes calls and assignments, one at a time.
func (m *goMutator) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			call, ok := s.X.(*ast.CallExpr)
			if !ok || m.isIgnored(call) {
				continue
			}
		case *ast.AssignStmt:
			if s.Tok == token.DEFINE || isBlank(s) {
				continue
			}
		case *ast.IncDecStmt, *ast.SendStmt:
		default:
			continue
		}
		number := m.add(s, "without "+m.source(s))
		m.wrap(s, fmt.Sprintf("if !mutantOn(%d) { ", number), " }")
	}
}

// isBlank returns whether an assignment assigns to the blank identifier only.
func isBlank(s *ast.AssignStmt) bool {
	return !slices.ContainsFunc(s.Lhs, func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return !ok || id.Name != "_"
	})
}

// ignored are packages whose calls as statements are logs, metrics, traces or locks. Their
// removal changes no result, or stops everything.
var ignored = []string{"log/slog", "sync", "github.com/prometheus/client_golang", "go.opentelemetry.io/otel", "telapi/internal/telemetry"}

// onlyLogs returns whether an if statement contains nothing but ignored calls. Its
// condition usually needs a call that fails, so the call is not changed either.
func (m *goMutator) onlyLogs(n *ast.IfStmt) bool {
	return n.Else == nil && !slices.ContainsFunc(n.Body.List, func(s ast.Stmt) bool {
		e, ok := s.(*ast.ExprStmt)
		if !ok {
			return true
		}
		call, ok := e.X.(*ast.CallExpr)
		return !ok || !m.isIgnored(call)
	})
}

func (m *goMutator) isIgnored(call *ast.CallExpr) bool {
	var id *ast.Ident
	switch f := call.Fun.(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return false
	}
	object := m.info.Uses[id]
	if object == nil || id.Name == "panic" {
		return true
	}
	return object.Pkg() != nil && slices.ContainsFunc(ignored, func(path string) bool {
		return object.Pkg().Path() == path || strings.HasPrefix(object.Pkg().Path(), path+"/")
	})
}
