// Package libraries tests the libraries for call runtimes, with the same tests for each
// language. It plays the scenarios of testdata/scenarios.txt with a scripted service. And it
// runs a program of the language, testdata/<language>/runtime or test/echo for Go, against the
// service, and breaks connections and processes under load.
//
// That program gets TELAPI_URL, TELAPI_KEY and TELAPI_NAME, and in some tests
// TELAPI_RESUME_MS, the time for which claims outlive a connection. It prints "entry <channel> <position> <kind> <text>" for each entry
// before it handles it, and "lost <channel>" if the store has lost data. It commits each
// entry after it has handled it. It obeys chat messages:
//
//	say X    sends X
//	ask      awaits a tool for 60 s, and sends {"workItemId":…,"token":…,"url":…}
//	short    the same for 300 ms
//	end      ends the channel with the reason "bye"
//
// It sends any other text back, "result <JSON>" for a tool_result and "timeout" for a
// timeout. It stops on SIGTERM.
package libraries

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"telapi/internal/auth"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// site is a service with a runtime that connects through a proxy.
type site struct {
	t        *testing.T
	language string
	env      harness.Env // of the service
	instance *harness.Instance
	tenant   harness.Tenant
	proxy    *harness.Proxy
	programs []*program // all processes of the runtime, the newest last
	resumeMs string
}

// eachLanguage runs a test with the library of each language.
func eachLanguage(t *testing.T, resumeMs string, test func(t *testing.T, s *site)) {
	for _, language := range []string{"go", "python", "node"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			port := fmt.Sprint(testkit.FreePort(t))
			s := &site{t: t, language: language, resumeMs: resumeMs, env: harness.Env{
				"TELAPI_PORT": port, "PUBLIC_URL": "http://127.0.0.1:" + port, "DATA_DIR": t.TempDir(),
				"SESSION_MAX_FRAMES_PER_SECOND": "10000", "SESSION_MAX_HANDSHAKES_PER_MINUTE": "10000", "SESSION_RECONNECT_JITTER": "0s",
			}}
			s.instance = harness.Start(t, s.env)
			s.tenant = harness.NewTenant(t, s.instance, "libraries")
			s.proxy = harness.StartProxy(t, "127.0.0.1:"+port)
			s.startRuntime()
			test(t, s)
		})
	}
}

// startRuntime starts a process of the runtime.
func (s *site) startRuntime() {
	s.t.Helper()
	_, key := harness.NewKey(s.t, s.instance, s.tenant.Team.ID, auth.RunCalls)
	env := harness.Env{"TELAPI_URL": "http://" + s.proxy.Addr(), "TELAPI_KEY": key, "TELAPI_NAME": "test"}
	if s.resumeMs != "" {
		env["TELAPI_RESUME_MS"] = s.resumeMs
	}
	s.programs = append(s.programs, startProgram(s.t, s.language, env))
}

// restartInstance stops the service and starts it again.
func (s *site) restartInstance() {
	s.t.Helper()
	testkit.Must(s.t, s.instance.Stop())
	s.instance = harness.Start(s.t, s.env)
}

func TestConversation(t *testing.T) {
	eachLanguage(t, "", func(t *testing.T, s *site) {
		c := newCaller(t, s.instance, s.tenant)
		c.say("héllo \"wörld\" 🙂")
		c.say("say something else")
		c.say("ask")
		item := c.waitForMore(2)
		testkit.Equal(t, "callback", answer(t, item, `{"n": 1, "list": [true, null]}`), http.StatusAccepted)
		c.waitForMore(3)
		c.say("short")
		expired := c.waitForMore(4)
		c.waitForMore(5)
		testkit.Equal(t, "late callback", answer(t, expired, `{}`), http.StatusUnauthorized)
		c.say("end")
		testkit.Until(t, "the session ends", c.hasEnded)
		want := []string{"héllo \"wörld\" 🙂", "something else", item, `result {"n":1,"list":[true,null]}`, expired, "timeout"}
		if got := c.texts(); !slices.Equal(got, want) {
			t.Errorf("the browser received %q, want %q", got, want)
		}
		testkit.Until(t, "the runtime receives channel_ended", func() bool {
			return slices.ContainsFunc(s.programs[0].entries(t), func(p printed) bool { return p.kind == "channel_ended" })
		})
		s.programs[0].checkOrder(t)
	})
}

const (
	callers  = 4
	messages = 60 // of each caller
	window   = 10 // messages of a caller without a reply
	asks     = 10 // every how many messages a caller asks for a result
)

// load lets callers talk. disturb is called after every step messages have been answered,
// before more are.
func (s *site) load(step int, disturb func(answered int)) (all []*caller) {
	s.t.Helper()
	steps := make(chan struct{})
	var talking sync.WaitGroup
	for n := range callers {
		c := newCaller(s.t, s.instance, s.tenant)
		all = append(all, c)
		talking.Go(func() { c.talk(n, steps) })
	}
	done := make(chan struct{})
	go func() { talking.Wait(); close(done) }()
	for answered := 1; ; answered++ {
		select {
		case <-steps:
			if answered%step == 0 && answered < callers*messages {
				disturb(answered)
			}
		case <-done:
			return all
		}
	}
}

// talk sends numbered messages, and answers the runtime when it asks. It returns when
// everything is answered.
func (c *caller) talk(n int, steps chan<- struct{}) {
	sent, echoed, answered, read := 0, 0, 0, 0
	for echoed < messages || answered < messages/asks {
		for sent < messages && sent < echoed+window {
			c.say(fmt.Sprintf("message %d of %d", sent, n))
			if sent++; sent%asks == 0 {
				c.say("ask")
			}
		}
		texts := []string{}
		testkit.Until(c.t, fmt.Sprintf("caller %d continues: %d messages are answered", n, echoed), func() bool {
			texts = c.texts()
			return len(texts) > read
		})
		for ; read < len(texts); read++ {
			switch text := texts[read]; {
			case strings.HasPrefix(text, "message "):
				echoed++
				steps <- struct{}{}
			case strings.HasPrefix(text, "result "):
				answered++
			case !slices.Contains(texts[:read], text): // asked again after a crash
				answer(c.t, text, fmt.Sprintf(`"%d of %d"`, answerCount(texts[:read]), n))
			}
		}
	}
	c.say("the end")
	c.waitFor("the end")
}

// answerCount returns the number of different work items among messages.
func answerCount(texts []string) int {
	items := map[string]bool{}
	for _, text := range texts {
		if strings.HasPrefix(text, "{") {
			items[text] = true
		}
	}
	return len(items)
}

// check checks that the browsers received every answer once and in order. An entry that
// the runtime had to handle again after a crash may be answered as often.
func (s *site) check(all []*caller) {
	s.t.Helper()
	handled := map[string]int{} // by channel and text
	for _, program := range s.programs {
		for _, p := range program.entries(s.t) {
			handled[p.channel+" "+p.text]++
		}
	}
	for n, c := range all {
		var echoes, results []string
		count := map[string]int{}
		for _, text := range c.texts() {
			count[text]++
			switch {
			case count[text] > 1:
				if count[text] > max(1, handled[c.Session+" "+text]) {
					s.t.Errorf("caller %d received %q %d times; the runtime received it %d times", n, text, count[text], handled[c.Session+" "+text])
				}
			case strings.HasPrefix(text, "result "):
				results = append(results, text)
			case !strings.HasPrefix(text, "{"):
				echoes = append(echoes, text)
			}
		}
		var wantEchoes, wantResults []string
		for i := range messages {
			wantEchoes = append(wantEchoes, fmt.Sprintf("message %d of %d", i, n))
		}
		for i := range messages / asks {
			wantResults = append(wantResults, fmt.Sprintf(`result "%d of %d"`, i, n))
		}
		if !slices.Equal(echoes, append(wantEchoes, "the end")) {
			s.t.Errorf("caller %d received %q", n, echoes)
		}
		if !slices.Equal(results, wantResults) {
			s.t.Errorf("caller %d received %q", n, results)
		}
	}
}

func TestNothingIsLostOrRepeatedWhenConnectionsBreak(t *testing.T) {
	eachLanguage(t, "60000", func(t *testing.T, s *site) {
		all := s.load(callers*messages/32, func(int) {
			testkit.Until(t, "a connection to cut", func() bool { return s.proxy.Reset(1) > 0 })
		})
		s.check(all)
		s.programs[0].checkOrder(t)
	})
}

func TestNothingIsLostWhenRuntimeIsKilled(t *testing.T) {
	eachLanguage(t, "", func(t *testing.T, s *site) {
		all := s.load(callers*messages/4, func(int) {
			s.programs[len(s.programs)-1].kill()
			s.startRuntime()
		})
		s.check(all)
		for _, program := range s.programs {
			program.checkOrder(t)
		}
	})
}

func TestNothingIsLostOrRepeatedWhenServiceRestarts(t *testing.T) {
	eachLanguage(t, "60000", func(t *testing.T, s *site) {
		all := s.load(callers*messages/4, func(int) { s.restartInstance() })
		s.check(all)
		s.programs[0].checkOrder(t)
	})
}

// Another runtime continues the sessions of one that stops, before their claims expire.
func TestStoppedRuntimeReleasesItsSessions(t *testing.T) {
	eachLanguage(t, "60000", func(t *testing.T, s *site) {
		c := newCaller(t, s.instance, s.tenant)
		c.say("hello")
		c.waitFor("hello")
		s.startRuntime()
		s.programs[0].stop(t)
		c.say("hello again")
		c.waitFor("hello again")
	})
}
