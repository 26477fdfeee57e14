package faults

import (
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/config"
	"telapi/internal/media"
	"telapi/internal/redact"
	"telapi/internal/redisstore"
	"telapi/internal/speech"
	"telapi/internal/sqlstore"
	"telapi/test/harness"
	"telapi/test/testkit"
)

// Two cleaners run on the same cache at the same time, with and without the media
// service. One works at a time, and each expired file is removed exactly once.
func TestCleanersTakeTurns(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, stores := range map[string]func(t *testing.T) (sqlstore.Options, redisstore.Options){
		"embedded": func(t *testing.T) (sqlstore.Options, redisstore.Options) {
			dir := t.TempDir()
			engine, err := redisstore.StartEmbedded(redisstore.EmbeddedOptions{DataDir: dir}, log)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(engine.Close)
			return sqlstore.Options{DataDir: dir}, engine.Options(log)
		},
		"postgres and redis": func(t *testing.T) (sqlstore.Options, redisstore.Options) {
			return sqlstore.Options{DSN: redact.Secret(testkit.SharedPostgres(t).NewDatabase(t))},
				redisstore.Options{RedisOptions: config.RedisOptions{Addrs: []string{testkit.StartRedis(t).Addr()}}, Logger: log}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dbOptions, kvOptions := stores(t)
			service := harness.StartMedia(t)
			cfg := harness.Config(t, service.Env)
			roots, err := cfg.MediaCacheCAs()
			if err != nil {
				t.Fatal(err)
			}
			db, err := sqlstore.Open(dbOptions)
			if err == nil {
				err = db.Migrate(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			client, err := media.NewClient(cfg.MediaCacheURL, cfg.MediaCacheToken, roots)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()

			const each = 60 // expired and valid recordings
			var kept []string
			old := time.Now().Add(-2 * time.Hour)
			for n := range 2 * each {
				row := speech.Recording{Hash: speech.Hash("t", "p", n, speech.Utterance{}), TeamID: "t", Variants: map[speech.Encoding]string{speech.PCM: "x"},
					CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Duration(n%2*2-1) * time.Hour)}
				path := speech.BlobPath(row.Hash, speech.PCM)
				if err := client.Put(t.Context(), path, []byte("audio")); err != nil {
					t.Fatal(err)
				}
				if n%2 == 1 || n == 0 { // the first was just synthesized again and is not stored yet
					kept = append(kept, path)
				} else if err := os.Chtimes(filepath.Join(service.Root, path), old, old); err != nil {
					t.Fatal(err)
				}
				if _, err := db.SaveRecording(t.Context(), row); err != nil {
					t.Fatal(err)
				}
			}

			var mu sync.Mutex
			removed, cleanups := map[string]int{}, 0
			clean := func() {
				var instances sync.WaitGroup
				for range 2 {
					kv := redisstore.Open(kvOptions)
					if err := kv.Connect(t.Context()); err != nil {
						t.Fatal(err)
					}
					cleaner := speech.NewCleaner(db, client, redisstore.NewLeases(kv), 0, log, prometheus.NewRegistry(), time.Now)
					instances.Go(func() {
						defer kv.Close()
						for range 5 {
							err := cleaner.Clean(t.Context(), false, func(r speech.Removal) {
								mu.Lock()
								defer mu.Unlock()
								removed[r.Reason+" "+r.Path]++
							})
							mu.Lock()
							if err == nil {
								cleanups++
							}
							mu.Unlock()
						}
					})
				}
				instances.Wait()
			}
			service.Stop()
			clean()
			if cleanups != 0 || len(removed) != 0 {
				t.Errorf("without the media service: %d cleanups, %v removed, want none", cleanups, removed)
			}
			service.Start(t)
			clean()
			if cleanups == 0 || len(removed) != each-1 {
				t.Errorf("%d cleanups removed %d files, want %d", cleanups, len(removed), each-1)
			}
			for file, times := range removed {
				if times != 1 {
					t.Errorf("%s was removed %d times, want 1", file, times)
				}
			}
			rows, err := db.ListRecordings(t.Context(), "", time.Time{}, 1000)
			if err != nil || len(rows) != len(kept) {
				t.Errorf("%d rows remain, want %d: %v", len(rows), len(kept), err)
			}
			for _, path := range kept {
				if exists, err := client.Exists(t.Context(), path); err != nil || !exists {
					t.Errorf("%s exists: %v (%v), want true", path, exists, err)
				}
			}
		})
	}
}
