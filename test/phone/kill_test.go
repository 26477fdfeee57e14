package phone

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"telapi/callruntime/wire"
	"telapi/internal/app"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// newSiteLine starts a phone on two instances behind a balancer.
func newSiteLine(t *testing.T) (*line, *harness.Site) {
	t.Helper()
	site := harness.StartSite(t, harness.SiteOptions{Balancer: harness.HAProxy, Env: harness.Env{
		"DATABASE_URL": harness.Database(t), "REDIS_URL": testkit.StartRedis(t).URL(), "SPEECH_PROVIDERS": "tone",
	}})
	l := &line{t: t, bot: newBot(t)}
	l.bot.client = &http.Client{Transport: &http.Transport{TLSClientConfig: site.TLS()}}
	team := site.Telapi("endpoint", "show", site.Endpoint)["teamId"].(string)
	key := site.Telapi("key", "create", "--team", team, "--scope", "CREATE_SPEECH", "--scope", "READ_TEAM_APPS", "--scope", "RUN_CALLS")["key"].(string)
	var err error
	l.observer, err = app.OpenRuntime(harness.Config(t, site.Env))
	testkit.Must(t, err)
	t.Cleanup(l.observer.Close)
	profile, err := json.Marshal(wire.GatewayProfile{CommandSources: []string{wire.SourceBot}, CommandPolicies: policies()})
	testkit.Must(t, err)
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "profile.json"), profile, 0o600))
	site.Telapi("endpoint", "update", site.Endpoint, "--profile", filepath.Join(dir, "profile.json"))
	testkit.Must(t, os.WriteFile(filepath.Join(dir, "ca.pem"), site.CA(), 0o600))
	l.env = harness.Env{
		"TELAPI_URL": site.URL, "TELAPI_KEY": key, "PHONE_ENDPOINT": site.Endpoint, "PHONE_BOT_URL": l.bot.server.URL,
		"SSL_CERT_FILE": filepath.Join(dir, "ca.pem"), "PHONE_STATE": filepath.Join(dir, "calls"), "PHONE_MEDIA_TIMEOUT": "10m",
	}
	l.start()
	return l, site
}

// The bot answers while the instance that the phone uses is dead. The caller hears it.
func TestCallSurvivesKilledInstance(t *testing.T) {
	t.Parallel()
	l, site := newSiteLine(t)
	e := newEar(t)
	l.bot.answer("9", event("Goodbye.", "hangup", `{}`))
	s := l.callWith(e, invite, receiveBye)
	id := l.channel()
	for n, key := range []string{"1", "2"} { // one of the two is the phone's
		e.press(t, key)
		q := l.bot.awaitAsked(key)
		site.KillInstance(n)
		start := time.Now()
		l.bot.post(q, text("Answer "+key+"."))
		l.awaitMessage(id, "Answer "+key+".")
		t.Logf("answer %s arrived %v after the instance was killed", key, time.Since(start).Round(10*time.Millisecond))
		site.StartInstance(n)
		site.AwaitHealthy(n)
	}
	before := e.received()
	testkit.Until(t, "the audio goes on", func() bool { return e.received() > before })
	e.press(t, "9")
	s.wait()
	l.awaitIdle()
}

// After a crash of the phone, its next start ends the channels of the calls that are gone.
func TestRestartedPhoneEndsChannels(t *testing.T) {
	t.Parallel()
	l := newLine(t, nil)
	l.call(invite, receiveBye)
	id := l.channel()
	testkit.Must(t, l.process.Process.Kill())
	_, _ = l.process.Process.Wait()
	if got := l.lastEntry(id); got == wire.KindChannelEnded {
		t.Fatal("the channel ended with the process")
	}
	l.start()
	testkit.Until(t, "the channel has ended", func() bool { return l.lastEntry(id) == wire.KindChannelEnded })
	if files, _ := os.ReadDir(l.env["PHONE_STATE"]); len(files) != 0 {
		t.Errorf("%d calls are still noted", len(files))
	}
	l.call(invite, sendBye).wait()
	l.awaitIdle()
}

// lastEntry returns the kind of a channel's last entry.
func (l *line) lastEntry(id string) wire.EntryKind {
	l.t.Helper()
	entries, err := l.observer.Entries(l.t.Context(), id, "", 1000)
	testkit.Must(l.t, err)
	if len(entries) == 0 {
		return ""
	}
	return entries[len(entries)-1].Entry.Kind
}
