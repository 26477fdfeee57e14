package house

import (
	"fmt"
	"slices"
)

// Floor is one level of the house. A package imports only what lies below its
// own floor, or beside it where the floor allows that.
type Floor struct {
	Name    string
	Folders []string // each with everything below it
	Apart   bool     // packages of this floor never import each other
	Why     string   // the reason, for whoever breaks the rule
}

// floors is the house from the top down. A new package goes into one of these
// lists; a folder named here twice belongs to the longer entry.
var floors = []Floor{
	{
		Name: "cmd", Folders: []string{"cmd"},
		Why: "main turns signals and an exit code into a call of cli, and nothing depends on it",
	},
	{
		Name: "cli", Folders: []string{"internal/cli"},
		Why: "commands use the assembled service; the service knows nothing of the command line",
	},
	{
		Name: "app", Folders: []string{"internal/app"},
		Why: "only the assembly knows every part, so that a part can be replaced without touching the others",
	},
	{
		Name: "adapters", Apart: true,
		Folders: []string{
			"internal/demo", "internal/httpapi", "internal/media", "internal/redisstore", "internal/sqlstore", "internal/synth",
			"internal/telemetry",
		},
		Why: "an adapter speaks one technology and knows the domain alone: let the domain declare a small interface and app connect the two",
	},
	{
		Name: "callruntime", Folders: []string{"callruntime", "internal/pubsub"},
		Why: "it is the public side of the contract with the call runtime, for adapters and the outside world",
	},
	{
		Name: "domain",
		Folders: []string{
			"internal/auth", "internal/bot", "internal/callback", "internal/channel", "internal/command", "internal/endpoint",
			"internal/ratelimit", "internal/session", "internal/speech", "internal/team", "internal/usage",
		},
		Why: "the domain decides and knows no technology: let it declare the small interface it needs and an adapter implement it",
	},
	{
		Name: "leaves",
		Folders: []string{
			"api", "callruntime/wire", "internal/audio", "internal/backlog", "internal/config", "internal/fault", "internal/cache", "internal/kv", "internal/lua", "internal/sleep", "internal/redact", "internal/httpserve",
			"internal/strictjson", "web",
		},
		Why: "everybody imports the leaves, so they may depend on nothing above them",
	},
}

// testFolder holds tests and what they share: on no floor, free to import anything.
const testFolder = "test"

// ban forbids imports to everything in some folders or on some floors.
type ban struct {
	from    func(p placed) bool
	imports []string // each with everything below it
	why     string
}

var bans = []ban{
	{
		from: func(p placed) bool { return p.floor.Name == "domain" || p.floor.Name == "leaves" },
		imports: []string{
			"database/sql", "github.com/jackc/pgx", "github.com/pressly/goose", "modernc.org/sqlite",
			"github.com/redis", "github.com/alicebob/miniredis", "github.com/gorilla/websocket",
		},
		why: "decisions are made and tested without a database, a key-value store or a socket: that belongs into an adapter",
	},
	{
		from:    func(p placed) bool { return p.floor.Name == "domain" },
		imports: []string{module + "/internal/httpserve"},
		why:     "the domain knows nothing of HTTP: decode and encode in httpapi",
	},
	{
		from:    func(p placed) bool { return true },
		imports: []string{module + "/" + testFolder},
		why:     "code that only tests need does not belong into the service",
	},
}

// placed is a package and its place in the house.
type placed struct {
	dir   string
	root  string // the entry of the floor's list that it belongs to
	floor Floor
	level int // index in floors; larger is lower
}

// place finds the most particular floor entry that covers dir.
func place(dir string) (placed, bool) {
	var best placed
	for level, floor := range floors {
		for _, folder := range floor.Folders {
			if within(dir, folder) && len(folder) > len(best.root) {
				best = placed{dir: dir, root: folder, floor: floor, level: level}
			}
		}
	}
	return best, best.root != ""
}

// ImportsRunDownwards reports packages that stand nowhere in the house, and
// imports that go up, sideways between adapters, or to what a floor must not know.
// Tests may import what they like: they meet the service from outside.
func ImportsRunDownwards(t *Tree) []string {
	var found []string
	for _, p := range t.Packages {
		if within(p.Dir, testFolder) {
			continue
		}
		from, ok := place(p.Dir)
		if !ok {
			found = append(found, fmt.Sprintf("%s stands on no floor of the house: add it to a list in test/house/floors.go "+
				"(adapters if it speaks a technology, domain if it decides something, leaves if it needs nothing of ours)", p.Dir))
			continue
		}
		for _, file := range p.Files {
			if file.Test {
				continue
			}
			for _, spec := range file.AST.Imports {
				if why := from.refuses(importPath(spec)); why != "" {
					found = append(found, file.at(spec.Pos())+": "+why)
				}
			}
		}
	}
	return found
}

// refuses returns why the package must not import name, or nothing.
func (from placed) refuses(name string) string {
	for _, b := range bans {
		if b.from(from) && slices.ContainsFunc(b.imports, func(root string) bool { return within(name, root) }) {
			return fmt.Sprintf("%s (%s) must not import %s: %s", from.dir, from.floor.Name, name, b.why)
		}
	}
	if !within(name, module) || name == module {
		return ""
	}
	to, ok := place(name[len(module)+1:])
	switch {
	case !ok: // reported where it stands
		return ""
	case to.level < from.level:
		return fmt.Sprintf("%s (%s) must not import %s (%s), which lies above it: %s",
			from.dir, from.floor.Name, to.dir, to.floor.Name, from.floor.Why)
	case to.level == from.level && from.floor.Apart && to.root != from.root:
		return fmt.Sprintf("%s must not import %s, another of the %s: %s", from.dir, to.dir, from.floor.Name, from.floor.Why)
	default:
		return ""
	}
}
