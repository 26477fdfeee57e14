package sqlstore

import (
	"database/sql"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"telapi/internal/fault"
	"telapi/internal/speech"
	"telapi/test/testkit"
)

var recording1 = speech.Recording{
	Hash: strings.Repeat("ab", 32), TeamID: "t1", Provider: "tone", SampleRate: 8000,
	Utterance: speech.Utterance{Text: "Grüß Gott, 世界 🌍\n„quoted“", Model: "m", Speed: 1.25},
	Variants:  map[speech.Encoding]string{speech.ALaw: "1111"},
	CreatedAt: testTime, ExpiresAt: testTime.Add(time.Minute),
}

func with(r speech.Recording, change func(*speech.Recording)) speech.Recording {
	change(&r)
	return r
}

func TestRecordingVariants(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		want := func(what string, want speech.Recording) {
			t.Helper()
			if got, err := s.Recording(ctx, recording1.Hash); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, %v, want %+v", what, got, err, want)
			}
		}
		save := func(r speech.Recording) {
			t.Helper()
			kept, err := s.SaveRecording(ctx, r)
			testkit.Must(t, err)
			want("returned recording", kept)
		}
		save(recording1)
		want("new recording", recording1)

		save(with(recording1, func(r *speech.Recording) {
			r.Variants, r.ExpiresAt = map[speech.Encoding]string{speech.PCM: "2222"}, time.Time{}
			r.CreatedAt = testTime.Add(30 * time.Second)
		}))
		both := with(recording1, func(r *speech.Recording) {
			r.Variants = map[speech.Encoding]string{speech.ALaw: "1111", speech.PCM: "2222"}
		})
		want("second variant: merged, with the times of the first", both)

		testkit.Must(t, s.DeleteVariant(ctx, recording1.Hash, speech.PCM, "other"), s.DeleteVariant(ctx, "unknown", speech.PCM, "2222"))
		want("variant with another checksum: not deleted", both)
		testkit.Must(t, s.DeleteVariant(ctx, recording1.Hash, speech.PCM, "2222"))
		want("variant deleted", recording1)

		later := with(recording1, func(r *speech.Recording) {
			r.CreatedAt = testTime.Add(time.Minute)
			r.Variants, r.ExpiresAt = map[speech.Encoding]string{speech.PCM: "2222"}, time.Time{}
		})
		save(later)
		want("expired recording: replaced", later)

		testkit.Must(t, s.DeleteVariant(ctx, recording1.Hash, speech.PCM, "2222"))
		testkit.WantFault(t, "recording without variants", testkit.ErrorOf(s.Recording(ctx, recording1.Hash)), fault.NotFound)
		// Other applications read the columns variants and ttl.
		unlimited := with(recording1, func(r *speech.Recording) { r.Hash, r.ExpiresAt = strings.Repeat("cd", 32), time.Time{} })
		for want, r := range map[string]speech.Recording{`["alaw"] 60`: recording1, `["alaw"] 0`: unlimited} {
			var variants string
			var ttl sql.NullInt64
			_, saveErr := s.SaveRecording(ctx, r)
			err := s.write.QueryRowContext(ctx, `SELECT variants, ttl FROM tts_media_cache WHERE hash = $1`, r.Hash).Scan(&variants, &ttl)
			if got := fmt.Sprint(variants, " ", ttl.Int64); saveErr != nil || err != nil || got != want || ttl.Valid == r.ExpiresAt.IsZero() {
				t.Errorf("variants and ttl are stored as %s, want %s; %v, %v", got, want, saveErr, err)
			}
		}
		testkit.WantFault(t, "voice with NUL", testkit.ErrorOf(s.SaveRecording(ctx, with(recording1, func(r *speech.Recording) { r.Voice = "\x00" }))), fault.Validation)
	})
}

func TestConcurrentVariantsAreMerged(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		const n = 12
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				v := map[speech.Encoding]string{speech.Encoding(fmt.Sprint("e", i)): "x"}
				if _, err := s.SaveRecording(t.Context(), with(recording1, func(r *speech.Recording) { r.Variants = v })); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got, err := s.Recording(t.Context(), recording1.Hash); err != nil || len(got.Variants) != n {
			t.Errorf("%d variants, %v; want %d", len(got.Variants), err, n)
		}
	})
}

func TestUnusedRecordings(t *testing.T) {
	onEachEngine(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		hash := func(n int) string { return strings.Repeat(fmt.Sprint(n), 64) }
		for n, times := range []struct{ created, used, expires time.Duration }{
			{created: 1},
			{created: 1, used: 1},
			{created: 1, used: 2}, // used later
			{created: 2},          // created later
			{created: 1, expires: 9},
		} {
			r := with(recording1, func(r *speech.Recording) {
				r.Hash, r.CreatedAt, r.ExpiresAt = hash(n), testTime.Add(times.created*time.Hour), time.Time{}
				if times.used > 0 {
					r.UsedAt = testTime.Add(times.used * time.Hour)
				}
				if times.expires > 0 {
					r.ExpiresAt = testTime.Add(times.expires * time.Hour)
				}
			})
			testkit.Must(t, testkit.ErrorOf(s.SaveRecording(ctx, r)))
		}
		unused := func(after string, limit int) []speech.Recording {
			t.Helper()
			list, err := s.ListRecordings(ctx, speech.RecordingFilter{UnusedSince: testTime.Add(time.Hour)}, after, limit)
			testkit.Must(t, err)
			return list
		}
		list := unused("", 9)
		if len(list) != 2 || list[0].Hash != hash(0) || list[1].Hash != hash(1) {
			t.Fatalf("unused recordings %+v, want the first two", list)
		}
		if page := unused(hash(0), 1); len(page) != 1 || page[0].Hash != hash(1) {
			t.Errorf("second page %+v, want the second recording", page)
		}
		testkit.Must(t, s.TouchRecording(ctx, hash(1), testTime.Add(3*time.Hour)), s.TouchRecording(ctx, "unknown", testTime))
		if r, err := s.Recording(ctx, hash(1)); err != nil || !r.UsedAt.Equal(testTime.Add(3*time.Hour)) {
			t.Errorf("last use %s, %v; want that of TouchRecording", r.UsedAt, err)
		}
		testkit.Must(t, s.DeleteUnchangedRecording(ctx, list[0]), s.DeleteUnchangedRecording(ctx, list[1]))
		all, err := s.ListRecordings(ctx, speech.RecordingFilter{}, "", 9)
		if err != nil || len(all) != 4 || all[0].Hash != hash(1) {
			t.Errorf("%d recordings remain from %+v, %v; want all but the first", len(all), all, err)
		}
	})
}
