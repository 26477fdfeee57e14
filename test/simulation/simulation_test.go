//go:build simulation

package simulation

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"telapi/internal/sqlstore"
	"telapi/internal/team"
	"telapi/test/testkit"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "replay this seed and print its trace")
	seedsFlag = flag.Int("seeds", 0, "number of seeds to run")

	commitFlag  = flag.String("commit", "", "hash from which the seeds are derived")
	foreverFlag = flag.Bool("forever", false, "run new seeds until one fails")
)

// firstSeed returns the seed with which TestSeeds starts: 1, or one that depends on the
// commit.
func firstSeed(t *testing.T) uint64 {
	t.Helper()
	if *commitFlag == "" {
		return 1
	}
	seed, err := strconv.ParseUint((*commitFlag)[:min(12, len(*commitFlag))], 16, 64)
	testkit.Must(t, err)
	return seed
}

func TestMain(m *testing.M) {
	flag.Parse()
	runtime.GOMAXPROCS(1) // two threads would make the order of events random
	os.Exit(m.Run())
}

// tempDir returns a directory in memory if the system has a memory file system.
func tempDir(t *testing.T) string {
	t.Helper()
	parent := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "telapi-simulation-*")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// copyDatabase returns a directory with a copy of a database. It is faster than
// the migrations.
func copyDatabase(t *testing.T, template string) string {
	t.Helper()
	dir := tempDir(t)
	testkit.Must(t, os.CopyFS(dir, os.DirFS(template)))
	return dir
}

// newDatabase returns the directory of a migrated database.
func newDatabase(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	db, err := sqlstore.Open(sqlstore.Options{DataDir: dir})
	testkit.Must(t, err)
	defer func() { _ = db.Close() }()
	testkit.Must(t, db.Migrate(t.Context()))
	now := time.Now()
	testkit.Must(t, db.CreateTeam(t.Context(), team.Team{ID: teamID, Name: teamID, CreatedAt: now}))
	e := team.Endpoint{ID: endpointID, TeamID: teamID, Name: endpointID, Enabled: true, Modes: team.Modes, CreatedAt: now, UpdatedAt: now}
	testkit.Must(t, db.CreateEndpoint(t.Context(), e))
	return dir
}

// simulate runs one seed in a bubble.
func simulate(t *testing.T, seed uint64, template string) (result Result) {
	t.Helper()
	old := debug.SetGCPercent(-1) // a collection would change the order of goroutines
	defer func() { debug.SetGCPercent(old); runtime.GC() }()
	t.Run("", func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, seed)
		dir := copyDatabase(t, template)
		synctest.Test(t, func(t *testing.T) { result = run(t, seed, dir) })
	})
	return result
}

// TestSeeds runs the first seeds, those of a commit, one seed with its trace, or new seeds
// forever.
func TestSeeds(t *testing.T) {
	dir := newDatabase(t)
	if *seedFlag != 0 {
		simulate(t, 1, dir) // the first run draws random numbers when it initializes packages
		result := simulate(t, *seedFlag, dir)
		t.Log(result.Failure())
		if len(result.Violations) > 0 {
			t.Fail()
		}
		return
	}
	if *foreverFlag {
		runForever(t, dir)
	}
	first := firstSeed(t)
	for seed := first; seed < first+uint64(*seedsFlag); seed++ {
		if result := simulate(t, seed, dir); len(result.Violations) > 0 {
			t.Error(result.Failure())
			if flag.Lookup("test.failfast").Value.String() == "true" {
				return
			}
		}
	}
}

// runForever runs new seeds until one fails or the process is stopped.
func runForever(t *testing.T, dir string) {
	t.Helper()
	first := uint64(time.Now().Unix()) * 1000
	for seed := first; ; seed++ {
		if result := simulate(t, seed, dir); len(result.Violations) > 0 {
			t.Fatal(result.Failure())
		}
		if n := seed - first + 1; n%50 == 0 {
			fmt.Printf("%d seeds without a violation, the last one is %d\n", n, seed)
		}
	}
}
