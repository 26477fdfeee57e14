package runtimecontract

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"telapi/internal/redisstore"
	"telapi/test/servers"
)

func TestInvalidArgumentsAreRejected(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		rejectInvalidArguments(t, dial(t, servers.StartRedis(t).Addr(), "default", ""))
	})
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		log := slog.New(slog.DiscardHandler)
		e, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{DataDir: t.TempDir()}, log)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		opts := e.Options(log)
		rejectInvalidArguments(t, dial(t, opts.Addrs[0], "default", opts.Password.Reveal()))
	})
}

// rejectInvalidArguments replaces one argument of a valid call at a time. Every such
// call must fail with an error that names the argument, and change nothing.
func rejectInvalidArguments(t *testing.T, redis *client) {
	const missing = "(missing)"
	digest, entry, long := strings.Repeat("0a", 32), `{"kind":"timeout"}`, strings.Repeat("x", 129)
	open := []string{"node-1", "token-1", "15000", "open", "", "epoch1", "t-1", "e-1", "", "", "", "", "300", "600000", "10000", "8388608", "86400000", "90000000"}
	if reply := redis.eval("claim", "call-1", open...); at(reply, 0) != "claimed" {
		t.Fatalf("open replied %v, want claimed", reply)
	}
	renew := []string{"node-1", "token-1", "15000", "renew", "", "", "", ""}
	send := []string{"token-1", "-d", "", "m-1 -", "{}", "{}"}
	await := []string{"token-1", digest, "bot", "work_item", "item-1", "1000", entry, ""}
	state := func() string {
		var b strings.Builder
		for _, key := range []string{"meta", "work"} {
			fmt.Fprintln(&b, redis.do("HGETALL", "telapi:ch:{call-1}:"+key))
		}
		for _, key := range []string{"in", "out"} {
			fmt.Fprintln(&b, redis.do("XRANGE", "telapi:ch:{call-1}:"+key, "-", "+"))
		}
		return b.String()
	}
	before := state()
	for _, c := range []struct {
		script string
		valid  []string
		index  int // of the argument that is replaced; the end of the arguments if the value is missing
		values []string
		want   string // in the error
	}{
		{"claim", open, 0, []string{""}, "invalid runtime name"},
		{"claim", open, 1, []string{""}, "invalid token"},
		{"claim", open, 2, []string{"", "15s", "-1", "1.5", "86400001", "1e3"}, "invalid lease"},
		{"claim", open, 3, []string{"", "opne", "OPEN", "open attach", missing}, "invalid action"},
		{"claim", open, 4, []string{"now", "-1", "1.5"}, "invalid time of the request"},
		{"claim", open, 5, []string{"", "a b", long, missing}, "invalid epoch"},
		{"claim", open, 6, []string{""}, "invalid team"},
		{"claim", open, 7, []string{"", missing}, "invalid endpoint"},
		{"claim", open, 11, []string{"profile", "[]", missing}, "invalid profile"},
		{"claim", open, 12, []string{"many"}, "invalid history messages"},
		{"claim", open, 17, []string{"", "1h", "9999999999999", missing}, "invalid keep ms"},
		{"claim", renew, 5, []string{"12", "a-b", "-", "1-1234567890123456789"}, "invalid last ID"},
		{"claim", renew, 6, []string{"a b"}, "invalid work item ID"},
		{"claim", renew, 7, []string{"12"}, "invalid position"},
		{"commit", []string{"token-1", "1-1", "1000"}, 1, []string{"", "1", "$", "-", "one-two", "1-2-3", missing}, "invalid position"},
		{"commit", []string{"token-1", "1-1", "1000"}, 2, []string{"", "all", "-1", missing}, "invalid number of entries"},
		{"send", send, 1, []string{"", "-", "--d", "-x", "- ", "h", "-h", "h-d", "-dhh"}, "invalid flags"},
		{"confirm", []string{"1-1"}, 0, []string{"", "1", "newest", missing}, "invalid message ID"},
		{"send", send, 2, []string{"12", "newest", "1-"}, "invalid last ID"},
		{"send", send, 3, []string{"m-1", "m-1 m-2 m-3"}, "invalid message IDs"},
		{"send", send, 3, []string{`m-1 "`, "- " + long}, "invalid message ID"},
		{"send", send, 4, []string{"", "null", "[]", "text\n", "{}x", "{" + strings.Repeat(" ", 65_535) + "}", missing}, "invalid"},
		{"send", append(slices.Clone(send), slices.Repeat([]string{"{}"}, 63)...), 4, []string{"{}"}, "invalid number of messages 65"},
		{"await", await, 1, []string{"", strings.ToUpper(digest), digest[1:], digest + "0", strings.Repeat("g", 64)}, "invalid digest"},
		{"await", await, 2, []string{"", "agent", "Bot"}, "use bot, llm or tool"},
		{"await", await, 3, []string{"", "call", "workitem"}, "use work_item or channel"},
		{"await", await, 4, []string{"", "a b", `a"b`, long}, "invalid work item ID"},
		{"await", await, 5, []string{"", "0", "-1", "1.5", "soon", "0x10", "1e3", "86400001", missing}, "use 1 to 86400000 ms"},
		{"await", await, 6, []string{"", "timeout", "[]", missing}, "invalid timeout entry"},
		{"await", await, 7, []string{"a b"}, "invalid newest work item ID"},
		{"cancel", []string{"token-1", "item-1"}, 1, []string{"", "a b", missing}, "invalid work item ID"},
		{"end", []string{"token-1", "done", entry}, 2, []string{"", "ended", "null", missing}, "invalid entry"},
		{"end", []string{"token-1", "done", entry, entry}, 3, []string{"["}, "invalid entry"},
	} {
		for _, value := range c.values {
			args := slices.Clone(c.valid)
			if value == missing {
				args = args[:c.index]
			} else {
				args[c.index] = value
			}
			runs := map[string]string{"full": redis.script(c.script)}
			if c.script == "send" {
				runs["fast"] = redis.fastScript(c.script)
			}
			for variant, text := range runs {
				if got := redis.try(channelCommand(text, "call-1", args)...); !strings.HasPrefix(got, "ERR ") || !strings.Contains(got, c.want) || strings.Contains(got, "user_script") {
					t.Errorf("%s (%s) with argument %d = %.50q replied %q, want an error with %q", c.script, variant, c.index+1, value, got, c.want)
				}
			}
		}
	}
	command := channelCommand(redis.script("touch"), "call-1", nil)
	for want, changed := range map[string][]string{
		"invalid number of keys 8":  append(append(slices.Clone(command[:2]), "8"), command[3:11]...),
		"invalid number of keys 10": append(append(append(slices.Clone(command[:2]), "10"), command[3:12]...), "telapi:ch:{call-1}:up", ""),
		`invalid deadline "1000"`:   append(slices.Clone(command[:12]), "1000"),
		`invalid deadline "so?n"`:   append(slices.Clone(command[:12]), "so\nn"),
	} {
		if got := redis.try(changed...); !strings.HasPrefix(got, "ERR "+want) {
			t.Errorf("touch replied %q, want an error that starts with %q", got, want)
		}
	}
	swapped := channelCommand(redis.script("claim"), "call-1", renew)
	swapped[4], swapped[5] = swapped[5], swapped[4]
	if got := redis.try(swapped...); !strings.Contains(got, "invalid key 2") {
		t.Errorf("claim with two keys in the wrong order replied %q, want an error", got)
	}
	if after := state(); after != before {
		t.Errorf("rejected calls changed the channel.\nbefore: %s\nafter: %s", before, after)
	}
	for script, args := range map[string][]string{"claim": renew, "send": send, "await": await} { // the calls are valid otherwise
		if got := at(redis.eval(script, "call-1", args...), 0); !slices.Contains([]string{"claimed", "awaited"}, fmt.Sprint(got)) && !strings.HasPrefix(fmt.Sprint(got), "2-") {
			t.Errorf("a valid %s replied %v", script, got)
		}
	}
}
