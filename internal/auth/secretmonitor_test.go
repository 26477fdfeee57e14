package auth_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/prometheus/client_golang/prometheus"

	"telapi/internal/auth"
	"telapi/internal/fault"
	"telapi/internal/redact"
	"telapi/test/testkit"
)

// sharedFingerprints are the fingerprints of other instances.
type sharedFingerprints struct {
	mu     sync.Mutex
	others []string
	shared []string // by this instance
	err    error
}

// set replaces the fingerprints of others and the error.
func (s *sharedFingerprints) set(err error, others ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others, s.err = others, err
}

func (s *sharedFingerprints) ShareFingerprint(_ context.Context, fingerprint string, _ time.Duration) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shared = append(s.shared, fingerprint)
	return append([]string{fingerprint}, s.others...), s.err
}

func TestDifferentSecretsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &sharedFingerprints{}
		secrets := auth.Secrets{Current: testSecret, Previous: "the previous secret of this deployment"}
		var log testkit.Buffer
		registry := prometheus.NewRegistry()
		monitor := auth.NewSecretMonitor(store, secrets, log.Logger(), registry)
		stop := testkit.Start(t, monitor.Run)
		expect := func(step string, others float64, lines int) {
			t.Helper()
			synctest.Wait()
			testkit.Equal(t, fmt.Sprintf("%s: other secrets in the metrics", step), testkit.Metrics(t, registry)["telapi_jwt_other_secrets"], others)
			if got := strings.Count(log.String(), "different JWT secrets"); got != lines {
				t.Errorf("%s: reported %d times, want %d\n%s", step, got, lines, log.String())
			}
			time.Sleep(15 * time.Second)
		}
		expect("alone", 0, 0)
		store.set(nil, secrets.Previous.Fingerprint())
		expect("the previous secret is known", 0, 0)
		store.set(nil, redact.Secret("another secret").Fingerprint())
		time.Sleep(10 * time.Second)
		expect("another secret", 1, 1)
		expect("still another secret: logged once", 1, 1)
		store.set(errors.New("unexpected reply"), redact.Secret("another secret").Fingerprint())
		time.Sleep(10 * time.Second)
		expect("the store fails", 1, 1)
		store.set(nil)
		time.Sleep(10 * time.Second)
		expect("fixed", 0, 1)
		stop()
		if !strings.Contains(log.String(), "other_fingerprints="+redact.Secret("another secret").Fingerprint()) || strings.Contains(log.String(), testSecret.Reveal()) {
			t.Errorf("log is %s, want the other fingerprint and no secret", log.String())
		}
		testkit.Equal(t, "shared fingerprint", store.shared[0], testSecret.Fingerprint())
	})
}

func TestFailedComparisonIsRetried(t *testing.T) {
	for _, test := range []struct {
		err    error
		retry  time.Duration
		logged int
	}{
		{fault.New(fault.ServiceUnavailable, "no connection"), time.Second, 0},
		{errors.New("unexpected reply"), 10 * time.Second, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := &sharedFingerprints{err: test.err}
			var log testkit.Buffer
			stop := testkit.Start(t, auth.NewSecretMonitor(store, auth.Secrets{Current: testSecret}, log.Logger(), prometheus.NewRegistry()).Run)
			synctest.Wait()
			store.set(nil)
			time.Sleep(test.retry)
			synctest.Wait()
			testkit.Equal(t, fmt.Sprintf("%v: comparisons", test.err), len(store.shared), 2)
			testkit.Equal(t, fmt.Sprintf("%v: warnings", test.err), strings.Count(log.String(), "comparing the JWT secrets of all instances failed"), test.logged)
			stop()
		})
	}
}

// cancelledFingerprints return the error of their context when it ends.
type cancelledFingerprints struct{}

func (cancelledFingerprints) ShareFingerprint(ctx context.Context, _ string, _ time.Duration) ([]string, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestEndOfComparisonsIsNotAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Buffer
		stop := testkit.Start(t, auth.NewSecretMonitor(cancelledFingerprints{}, auth.Secrets{Current: testSecret}, log.Logger(), prometheus.NewRegistry()).Run)
		synctest.Wait()
		stop()
		testkit.Equal(t, "log", log.String(), "")
	})
}

func TestRejectedTokensAreCountedByReason(t *testing.T) {
	registry := prometheus.NewRegistry()
	now := time.Now()
	tokens := auth.NewConsoleTokens(auth.Secrets{Current: testSecret}, time.Hour, func() time.Time { return now })
	a := auth.NewAuthenticator(nil, tokens, auth.NewTokenFailures(registry), discard(), time.Now)
	sign := func(secret string, claims jwt.MapClaims) string {
		token, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(secret))
		testkit.Must(t, err)
		return token
	}
	claims := func(expires time.Duration) jwt.MapClaims {
		return jwt.MapClaims{"sub": "u", "teamId": "t", "scopes": []string{}, "exp": now.Add(expires).Unix()}
	}
	for token, accepted := range map[string]bool{
		sign(testSecret.Reveal(), claims(time.Minute)):                                           true,
		sign("another secret of the same length", claims(time.Minute)):                           false,
		sign(testSecret.Reveal(), claims(-time.Minute)):                                          false,
		sign(testSecret.Reveal(), jwt.MapClaims{"sub": "u", "exp": now.Add(time.Minute).Unix()}): false,
		"rubbish": false,
	} {
		if _, err := a.Bearer("Bearer " + token); (err == nil) != accepted {
			t.Errorf("%s: %v, want accepted: %v", token, err, accepted)
		}
	}
	got := testkit.Metrics(t, registry)
	for _, token := range []string{"call", "console"} {
		for _, reason := range []string{"claims", "expired", "malformed", "signature"} {
			name, want := "telapi_jwt_failures_total "+reason+" "+token, map[string]float64{"console": 1}[token]
			if n, exported := got[name]; n != want || !exported {
				t.Errorf("%s: %v (exported: %v), want %v", name, n, exported, want)
			}
		}
	}
}

func TestLongestTokenIsAccepted(t *testing.T) {
	for length, accepted := range map[int]bool{auth.MaxTokenBytes: true, auth.MaxTokenBytes + 1: false} {
		// Leading spaces in the claims make the token as long as needed.
		padding, token := 0, ""
		for len(token) < length {
			padding++
			token = hs256(validHeader, strings.Repeat(" ", padding)+validClaims)
		}
		if len(token) != length {
			t.Fatalf("the token has %d bytes, want %d", len(token), length)
		}
		if _, err := newTestTokens().Verify(token); (err == nil) != accepted {
			t.Errorf("%d bytes: error %v, want accepted: %v", length, err, accepted)
		}
	}
}

func TestLastSecondOfYear9999IsATime(t *testing.T) {
	var claims jwt.RegisteredClaims
	if err := auth.UnmarshalClaims([]byte(`{"exp":253402300799}`), &claims); err != nil || claims.ExpiresAt.UTC().Year() != 9999 {
		t.Errorf("claims %+v, error %v", claims, err)
	}
	if err := auth.UnmarshalClaims([]byte(`{"exp":253402300800}`), &claims); err == nil {
		t.Error("no error one second later")
	}
}

func TestSecretOfCallTokensIsDerived(t *testing.T) {
	derived := auth.Secrets{Current: testSecret}.ForCallTokens()
	h := hmac.New(sha256.New, []byte(testSecret.Reveal()))
	h.Write([]byte("telapi-call-token"))
	if derived.Current.Reveal() != string(h.Sum(nil)) || derived.Previous != "" {
		t.Error("the current secret is not the HMAC of the label, or there is a previous one")
	}
}

func FuzzAPIKey(f *testing.F) {
	m := newTestStore(f)
	k, full := createKey(f, m, time.Now(), time.Time{}, auth.ReadTeamApps)
	a := newTestAuthenticator(m, time.Now)

	f.Add(full)
	f.Add("tk_" + k.ID + "_" + strings.Repeat("A", 43))
	f.Add("tk__")
	f.Add("tk_a_b_c")
	f.Add("")
	f.Fuzz(func(t *testing.T, presented string) {
		gotID, gotDigest, ok := auth.ParseKey(presented)
		if ok && (presented != "tk_"+gotID+"_"+presented[len(presented)-43:] ||
			gotDigest != sha256.Sum256([]byte(presented[len(presented)-43:]))) {
			t.Fatalf("ParseKey(%q) = ID %q and a digest, which do not match the input", presented, gotID)
		}
		who, err := a.APIKey(t.Context(), presented)
		switch {
		case presented == full:
			testkit.Must(t, err)
		case !fault.Is(err, fault.Unauthorized):
			t.Fatalf("%q: principal %+v and error %v, want %s", presented, who, err, fault.Unauthorized)
		}
	})
}

func FuzzVerify(f *testing.F) {
	tokens := newTestTokens()
	good := hs256(validHeader, validClaims)
	f.Add(good)
	f.Add(hs256(`{"alg":"none"}`, validClaims))
	f.Add(hs256(validHeader, `{"sub":1e999}`))
	f.Add("..")
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		who, err := tokens.Verify(token)
		if err != nil && !fault.Is(err, fault.Unauthorized) {
			t.Fatalf("%q: error %v, want %s", token, err, fault.Unauthorized)
		}
		// The base64 decoder ignores line breaks. An HTTP header cannot contain them.
		if err == nil && strings.NewReplacer("\r", "", "\n", "").Replace(token) != good {
			t.Fatalf("accepted unsigned token %q as %+v", token, who)
		}
	})
}

// FuzzClaims signs arbitrary claims. Even a console that is tricked into signing
// unusual claims must not create a principal without team and name.
func FuzzClaims(f *testing.F) {
	tokens := newTestTokens()
	f.Add(validHeader, validClaims)
	f.Add(`{"alg":"HS256","crit":["x"]}`, validClaims)
	f.Add(validHeader, `{"sub":"u","teamId":"t","scopes":[],"exp":1800000060,"aud":["telapi:session"]}`)
	f.Add(validHeader, `null`)
	f.Fuzz(func(t *testing.T, header, claims string) {
		who, err := tokens.Verify(hs256(header, claims))
		if err != nil {
			if !fault.Is(err, fault.Unauthorized) {
				t.Fatal(err)
			}
			return
		}
		if !auth.TeamPattern.MatchString(who.TeamID) || !auth.SubjectPattern.MatchString(who.Subject) || who.Scopes == nil {
			t.Fatalf("%s was accepted as the invalid principal %+v", claims, who)
		}
	})
}
