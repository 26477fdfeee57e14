package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"telapi/callruntime/wire"
	"telapi/test/harness"
	"telapi/test/testkit"
)

func TestUsageCommand(t *testing.T) {
	env := harness.WithDataDir(t, harness.Env{})
	i := harness.Start(t, env)
	tenant, rt := harness.NewTenant(t, i, "tenant"), harness.StartRuntime(t, i)
	now := time.Now()
	for _, r := range []wire.SpeechReport{
		{Voice: "anna", Characters: 320},
		{Voice: "anna", Characters: 320, Cached: true},
		{Voice: "z\x1b[2Jo\te", Characters: 1},
	} {
		r.TeamID, r.At = tenant.Team.ID, now.UnixMilli()
		testkit.Must(t, rt.ReportSpeech(t.Context(), r))
	}
	day := now.UTC().Format(time.DateOnly)
	testkit.Until(t, "all reports are counted", func() bool {
		var report struct{ Total struct{ Requests int } }
		getJSON(t, i, "/api/v1/usage/tts-characters?from="+day, tenant.Key, &report)
		return report.Total.Requests == 3
	})
	r := telapi(t, env, "usage", tenant.Team.ID, "--from", day, "--to", day, "--group-by", "voice")
	want := fmt.Sprintf(`Speech usage of %[1]s from %[2]s to %[2]s, by day (UTC)

                     CHARACTERS      BILLED      CACHED  REQUESTS  █ billed ░ cached
%[2]s anna             640         320         320         2  ████████████████░░░░░░░░░░░░░░░░
%[2]s z\ufffd[2Jo\ufffde           1           1           0         1  █
TOTAL                       641         321         320         3
`, tenant.Team.ID, day)
	want = strings.ReplaceAll(want, `\ufffd`, "\ufffd")
	if r.exit != 0 || r.stdout != want {
		t.Errorf("exit %d\ngot\n%s\nwant\n%s%s", r.exit, r.stdout, want, r.stderr)
	}
	if v := harness.RunJSON(t, env, "usage", tenant.Team.ID, "--from", day, "--interval", "month"); v["interval"] != "month" || !strings.HasPrefix(fmt.Sprint(v["total"]), "map[billedCharacters:321 cachedCharacters:320") {
		t.Errorf("usage --json prints %v, want interval month and the total", v)
	}
	if r := telapi(t, env, "usage", harness.NewTenant(t, i, "unused").Team.ID); r.exit != 0 || !strings.HasSuffix(r.stdout, "none\n") {
		t.Errorf("team without usage: %+v, want exit 0 and \"none\"", r)
	}
}
