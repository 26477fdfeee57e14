package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// simulationUnit is the unit of the mutants that the simulation alone must kill.
	simulationUnit = "simulation"
	// simulatedSeeds is how many seeds a mutant runs; the first that fails kills it.
	simulatedSeeds = 300
	simulationTime = 30 * time.Minute // after which a mutant counts as one that hangs
	runtimeOverlay = "bin/overlay/overlay.json"
)

// change replaces a text that occurs once in a file.
type change struct{ file, old, replacement string }

// simulated are the mutants of the simulation. Each takes a promise out.
var simulated = []struct {
	name  string
	edits []change
}{
	{"owner fence", []change{
		{"internal/kv/lua/frame.lua", "local rejection = channel.owner ~= connection and ownerRejection(number)", "local rejection = channel.owner == '' and ownerRejection(number)"},
		{"internal/kv/lua/connection.lua", "  if channel.owner ~= connection then return { ownerRejection(number) } end\n", ""},
	}},
	{"frame dedupe", []change{
		{"internal/kv/lua/frame.lua", "outcomes[i] = repeated and 'repeated' or refusal or 'appended'", "outcomes[i] = refusal or 'appended'"},
	}},
	{"ack although append failed", []change{
		{"internal/channel/receive.go", "\tif err != nil {\n\t\t// The frames may", "\tif err != nil {\n\t\tc.acknowledge(b, slices.Repeat([]Outcome{Appended}, len(b.frames)))\n\t\treturn\n\t\t// The frames may"},
		{"internal/channel/receive.go", "\t\"math\"\n", "\t\"math\"\n\t\"slices\"\n"},
	}},
	{"never park", []change{{"internal/kv/lua/callback.lua", "local inTurn, fields = c.number == head, {}", "local inTurn, fields = true, {}"}}},
	{"replay cursor +1", []change{{"internal/kv/lua/history.lua", "return readVisible(toNumber(id) + 1)", "return readVisible(toNumber(id) + 2)"}}},
	{"claim fence", []change{{"internal/kv/lua/claim.lua", "if token == '' or token == channel.claimToken then return nil end", "do return nil end"}}},
	{"send dedupe", []change{{"internal/kv/lua/history.lua", "if channel[id] ~= '' and tonumber(channel[id]) > number - MAX_SENT then", "if false then"}}},
	{"loss keeps the epoch", []change{{"internal/kv/lua/loss.lua", "  setField('epoch', string.sub(channel.epoch, 1, EPOCH_LENGTH) .. string.format('%d', now))\n", ""}}},
	{"isLost by number only", []change{{"internal/kv/lua/loss.lua", "if item then return item[1] ~= id end", "if item then return false end"}}},
	{"disconnect of a dead lease not reported", []change{{"internal/kv/lua/channel.lua", "    addSessionEvent(formatEntry('session', 'event', 'disconnected'))\n", ""}}},
	{"no second detach", []change{{"internal/channel/connection.go", "case c.hasFrames:\n\t\tc.detachLater(confirmDelay)", "case c.hasFrames:"}}},
	{"commit marks everything", []change{
		{"internal/kv/lua/commit.lua", "  committed = number\n", "  committed = entries\n"},
		{"internal/kv/lua/commit.lua", "{} or { 'committed', position }", "{} or { 'committed', lastEntryID() }"},
		{"internal/kv/lua/commit.lua", "saveAndDrop({ 'committed', position })", "saveAndDrop({ 'committed', lastEntryID() })"},
	}},
	{"detach without owner check", []change{{"internal/kv/lua/connection.lua", "if channel.owner ~= connection then -- an ended channel has no owner", "if channel.state ~= 'open' then"}}},
	{"one-shot credential reusable", []change{{"internal/kv/lua/work.lua", "  if c.callbackID ~= '' and not streaming then return 'consumed' end\n", ""}}},
	{"live gap ignored", []change{{"internal/channel/subscriber.go", "if after == c.cursor {", "if after == c.cursor || len(list) > 0 {"}}},
	{"late call executed", []change{{"internal/kv/lua/channel.lua", "if notAfter and now > tonumber(notAfter) then", "if false then"}}},
	{"late claim wins", []change{{"internal/kv/lua/claim.lua", " or isOutdated(requestedAt, channel.claimRequestedAt)", ""}}},
	{"second cancel removed", []change{{"callruntime/channel.go", "\t\tgo func() { _ = c.Cancel(c.ctx, await.WorkItemID) }() // ends with the channel\n", ""}}}, // of an item whose await may be under way
	{"no history read after resubscribing", []change{{"internal/redisstore/subscribe.go", "\tif p.wasDown {\n\t\tp.subscriber.Gap()\n\t}\n", ""}}},
	{"WAIT ignored", []change{{"internal/kv/replicated.go", "case confirmed < int64(replicas):", "case confirmed < 0:"}}},
	{"confirm skipped", []change{{"internal/calls/send.go", "if replicated {\n\t\t\terr =", "if replicated && n == 0 {\n\t\t\terr ="}}},
	{"held visible early", []change{{"internal/kv/lua/history.lua", "if string.sub(flags, count + 1) == 'h' then", "if false then"}}},
	{"loss of an early entry resets the browser", []change{{"internal/kv/lua/claim.lua", "or entryLost and early ~= '1') then", "or entryLost) then"}}},
	{"loss of an early claim resets the browser", []change{{"internal/kv/lua/claim.lua", "older and early ~= '1' or isOpen", "older or isOpen"}}},
	{"repeated part added again", []change{{"internal/kv/lua/callback.lua", "for part = before + 1, count do", "for part = count - parts + 1, count do"}}},
	{"part of another text added", []change{{"internal/kv/lua/callback.lua", "if string.sub(known, 1, common) ~= string.sub(sent, 1, common) or isLast", "if isLast"}}},
	{"part of a later item not parked", []change{{"internal/kv/lua/callback.lua", "local inTurn = c.number == head", "local inTurn = true"}}},
	{"part added after the cancellation", []change{{"internal/kv/lua/work.lua", "c.state = 'cancelled'\n", "c.state = state == 'streaming' and state or 'cancelled'\n"}}},
	{"open stream not interrupted", []change{{"internal/kv/lua/work.lua", "redis.call('PUBLISH', STREAMS,", "redis.call('PUBLISH', 'nobody',"}}},
	{"held shown newest first", []change{{"internal/kv/lua/history.lua", "notice[#notice + 1] = page[i + 1]", "table.insert(notice, 1, page[i + 1])"}}},
}

// simulationMutants returns the mutants of the simulation. A text that does not occur once
// is an error, so that the list follows the code.
func simulationMutants(root string) (mutants []*mutant, err error) {
	for _, s := range simulated {
		m := &mutant{unit: simulationUnit, file: s.edits[0].file, mutation: s.name, texts: map[string]string{}}
		for _, e := range s.edits {
			text, known := m.texts[e.file]
			if !known {
				text = string(must(os.ReadFile(filepath.Join(root, e.file))))
			}
			if n := strings.Count(text, e.old); n != 1 {
				return nil, fmt.Errorf("%q occurs %d times in %s: update the mutant %q in test/mutate/simulation.go", e.old, n, e.file, s.name)
			}
			m.texts[e.file] = strings.Replace(text, e.old, e.replacement, 1)
		}
		mutants = append(mutants, m)
	}
	return mutants, nil
}

// simulate runs the mutants of the simulation. Those of scripts share a program.
func (r *runner) simulate() {
	unchanged := ""
	for _, m := range r.mutants {
		if m.unit != simulationUnit {
			continue
		}
		start, program, scripts, code := time.Now(), unchanged, must(os.MkdirTemp(r.dir, "script")), map[string]string{}
		for file, text := range m.texts {
			if name, err := filepath.Rel(scriptDir, file); err == nil && filepath.Ext(file) == ".lua" {
				writeScript(scripts, name, text)
			} else {
				code[file] = text
			}
		}
		if program == "" || len(code) > 0 {
			program = r.buildSimulation(code)
		}
		if len(code) == 0 {
			unchanged = program
		}
		ctx, cancel := context.WithTimeout(context.Background(), simulationTime)
		command := exec.CommandContext(ctx, program, "-test.run=^TestSeeds$", "-test.failfast", "-test.timeout=0", fmt.Sprintf("-seeds=%d", simulatedSeeds))
		command.Dir, command.Env = filepath.Join(r.root, "test/simulation"), append(os.Environ(), "MUTANT_SCRIPTS="+scripts)
		output, err := command.CombinedOutput()
		cancel()
		m.killed = err != nil
		fmt.Printf("simulation: %s, killed: %v, %s %s\n", m.mutation, m.killed, time.Since(start).Round(time.Second), firstViolation(string(output)))
	}
}

// buildSimulation builds the simulation with changed files. It reads scripts from
// MUTANT_SCRIPTS, and a seed replays exactly.
func (r *runner) buildSimulation(code map[string]string) string {
	check(exec.Command("make", "-s", runtimeOverlay).Run()) // in the root, like this command
	var overlay struct{ Replace map[string]string }
	check(json.Unmarshal(must(os.ReadFile(filepath.Join(r.root, runtimeOverlay))), &overlay))
	files := map[string][]byte{}
	replaceScripts(r.root, files)
	for file, text := range code {
		files[filepath.Join(r.root, file)] = []byte(text)
	}
	dir := must(os.MkdirTemp(r.dir, "simulation"))
	built := newPrograms(r.root, dir, files, 1)
	var changed struct{ Replace map[string]string }
	check(json.Unmarshal(must(os.ReadFile(built.overlay)), &changed))
	maps.Copy(changed.Replace, overlay.Replace)
	check(os.WriteFile(built.overlay, must(json.Marshal(changed)), 0o600))
	program := filepath.Join(dir, "simulation.test")
	build := exec.Command("go", "test", "-c", "-vet=off", "-tags=simulation", "-overlay="+built.overlay, "-o", program, "./test/simulation")
	build.Dir, build.Stdout, build.Stderr = r.root, os.Stdout, os.Stderr
	check(build.Run())
	return program
}

// firstViolation returns the seed and the first violation of a failed run.
func firstViolation(output string) string {
	_, rest, found := strings.Cut(output, "simulation_test.go:")
	lines := strings.SplitN(rest, "\n", 3)
	if !found || len(lines) < 3 {
		return ""
	}
	_, seed, _ := strings.Cut(lines[0], " ")
	return seed + ": " + strings.TrimSpace(lines[1])
}
